"""Prefill and decode replicas that are the real scheduler and pool, with a clock for a model."""
