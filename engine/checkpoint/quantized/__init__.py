"""Quantised checkpoints, one file a layout."""
