"""Which part of a model each rank holds."""
