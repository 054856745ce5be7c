"""Routing: the cost of a decision, and how good decisions are in simulated fleets."""
