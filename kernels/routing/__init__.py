"""What a router computes of all its replicas for one prompt: no tensors, and no torch."""
