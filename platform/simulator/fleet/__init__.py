"""Simulated prefill and decode replicas: the real scheduler and block pool, with modelled step
times."""
