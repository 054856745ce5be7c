"""Recorded loads: who asked how much, and when."""
