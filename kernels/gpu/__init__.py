"""Helpers of Triton kernels. Public kernels import GPU files when they are given CUDA tensors."""
