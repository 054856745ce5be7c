"""Forecasts and the planner: simulated and calculated figures beside measured ones."""
