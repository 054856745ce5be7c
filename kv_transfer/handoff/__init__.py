"""The states and words of one handoff. Pure."""
