"""What may come next, by what stood behind the same tokens before."""
