"""The commands: their words and options."""
