"""Norms, and hyper-connections."""
