"""Kernels on GPUs, in Triton: imported by the public kernels when they are given CUDA tensors."""
