"""Replicas whose steps sleep for a given time and use hardly any CPU."""
