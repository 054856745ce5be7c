"""The registry as an actor, the planner in it, and the lines by which others reach it."""
