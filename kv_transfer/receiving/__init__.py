"""D's side of a handoff."""
