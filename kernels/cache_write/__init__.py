"""Fused writes of projected heads into the KV cache."""
