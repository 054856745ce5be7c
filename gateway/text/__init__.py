"""Text to tokens and back. Pure: no I/O after a model's files were read."""
