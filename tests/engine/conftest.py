"""Fixtures of this folder."""

from tests.sync_and_async import sync_and_async

__all__ = ["sync_and_async"]
