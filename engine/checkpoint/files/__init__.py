"""Tensors in files: safetensors, `.bin`, memory-mapped pages."""
