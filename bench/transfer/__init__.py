"""Handoff times by transport: `python -m bench.transfer`."""
