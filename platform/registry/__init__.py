"""The registry of replicas that serve."""
