"""Which requests run in the next pass."""
