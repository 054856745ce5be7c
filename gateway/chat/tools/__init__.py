"""How models write tool calls, and how callers ask for them."""
