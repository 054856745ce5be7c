"""Checkpoints in quantised formats: a writer of them, and what they cost in quality."""
