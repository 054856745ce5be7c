"""Computations of a router over all its replicas for one prompt: without tensors or torch."""
