"""Faults that are made on purpose: which, when, and who may ask for them."""
