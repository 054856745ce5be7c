"""Runs a test with async scheduling and without."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from baton.engine import engine

SYNC, ASYNC = "sync", "async"


@pytest.fixture(params=[SYNC, ASYNC])
def sync_and_async(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """Overrides `scheduler.async_scheduling` of all engines of the test."""
    monkeypatch.setattr(engine, "is_async", lambda choice, runner: request.param == ASYNC)
    yield request.param
