"""Tensors found in files: safetensors, `.bin`, memory-mapped pages."""
