"""Requests of all APIs: checked, planned, run, streamed."""
