"""P's side of a handoff."""
