"""x times a weight, however the weight is kept."""
