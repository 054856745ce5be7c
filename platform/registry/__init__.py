"""Which replicas serve."""
