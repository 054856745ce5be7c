"""Attention over KV shared by all heads: latents, compressed entries."""
