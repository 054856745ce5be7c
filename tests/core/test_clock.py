"""A clock that does not count the time in which its event loop stands still."""

from __future__ import annotations

import asyncio

import pytest

from baton.core import clock as clocks
from baton.core.clock import MOST_UNSEEN_S, AwakeClock, ManualClock


async def test_time_in_which_the_event_loop_stands_still_is_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clocks, "TICK_S", 0.0)
    real = ManualClock(100.0)
    awake = AwakeClock(real)
    assert awake() == 100.0
    awake.start()

    real.advance(60.0)  # whatever runs first after the stall reads the time before a tick
    assert awake() == 100.0 + MOST_UNSEEN_S
    await asyncio.sleep(0.01)
    assert awake() == 100.0 + MOST_UNSEEN_S
    real.advance(0.25)
    assert awake() == 100.25 + MOST_UNSEEN_S
    await asyncio.sleep(0.01)
    real.advance(0.25)
    assert awake() == 100.5 + MOST_UNSEEN_S
