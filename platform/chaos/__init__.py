"""Chaos scenarios: injected faults between replicas, gateways and the network."""
