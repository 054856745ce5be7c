"""Elementwise operations: gates, activations, sums; and row selection."""
