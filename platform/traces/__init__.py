"""Recorded loads: sizes, prefixes and arrival times of requests."""
