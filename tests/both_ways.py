"""Tests that hold for engines which read a pass before the next, and for those a step ahead."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from baton.engine import engine

ONE_BY_ONE, AHEAD = "one by one", "a step ahead"


@pytest.fixture(params=[ONE_BY_ONE, AHEAD])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Whatever their configuration says."""
    monkeypatch.setattr(engine, "goes_ahead", lambda choice, runner: request.param == AHEAD)
    yield request.param
