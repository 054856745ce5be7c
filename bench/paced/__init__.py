"""Replicas whose steps take a given time, but hardly any CPU time."""
