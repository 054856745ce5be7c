"""Fixtures of this folder."""

from tests.both_ways import both_ways

__all__ = ["both_ways"]
