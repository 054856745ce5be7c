"""Many replicas and gateways: the cost of following them, the registry, and failures."""
