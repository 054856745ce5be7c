"""The registry actor, with the planner, and the clients by which others reach it."""
