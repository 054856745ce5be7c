"""From text to tokens and back. Pure: nothing here does I/O after a model's files were read."""
