"""Instruments: an engine's speed, its limits on this machine, and where the time goes."""
