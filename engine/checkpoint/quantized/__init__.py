"""Quantized checkpoints: one file for each layout."""
