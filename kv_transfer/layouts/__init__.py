"""Which bytes go where, when layouts are equal and when they are not. Pure."""
