"""Faults that are made on purpose: which, when, and whoever may ask for them."""
