"""Speculative decoding: the speedup of each method, and upper bounds of it."""
