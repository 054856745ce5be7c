"""The state of replicas as columns of numbers."""
