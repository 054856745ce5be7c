"""The planner: numbers of replicas by load, step times and SLO."""
