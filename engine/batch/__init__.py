"""One forward pass as values and tensors."""
