"""What blocks of KV are called, and who holds them: no tensors, and no torch."""
