"""What each transport makes of a handoff: `python -m bench.transfer`."""
