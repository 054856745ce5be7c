"""Replicas with several ranks: checks, placement, processes."""
