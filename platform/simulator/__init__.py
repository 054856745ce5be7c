"""Simulates a load on the gateway's own router with modelled replicas."""
