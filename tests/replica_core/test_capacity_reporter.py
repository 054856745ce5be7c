"""When a gateway hears of a replica's capacity: at once what opens, soon the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from baton.core.replicas import Capacity
from baton.core.step_times import StepTimes
from baton.replica_core.capacity_reporter import CapacityReporter

TIMES = StepTimes(constant_s=0.01, num_decode_steps=3)


class Stream:
    def __init__(self, heartbeat_s: float = 60.0, idle_heartbeat_s: float = 60.0) -> None:
        self.due = asyncio.Event()
        self.news = CapacityReporter(self.due.set, lambda: TIMES, heartbeat_s, idle_heartbeat_s)

    def put(self, **facts: int) -> bool:
        """Whether it is due at once."""
        self.due.clear()
        self.news.put(Capacity(**facts))  # type: ignore[arg-type]
        return self.due.is_set()


async def test_what_opens_is_due_at_once_and_the_rest_soon() -> None:
    stream = Stream()
    assert stream.put(max_open=3)
    assert stream.news.take() == Capacity(max_open=3, step_times=TIMES)
    assert stream.put(max_open=3, credit_id=1, credit_tokens=500)
    stream.news.take()

    assert not stream.put(max_open=3, credit_id=1, credit_tokens=600)
    async with asyncio.timeout(60):
        await stream.due.wait()
    assert stream.news.take() == Capacity(max_open=3, credit_id=1, credit_tokens=600)
    assert stream.news.take() is None
    stream.news.close()


async def test_without_news_the_same_is_said_again_with_how_long_steps_take() -> None:
    stream = Stream(heartbeat_s=0.01, idle_heartbeat_s=0.04)
    stream.put(max_open=3)
    for _ in range(5):
        stream.due.clear()
        assert stream.news.take() == Capacity(max_open=3, step_times=TIMES)
        async with asyncio.timeout(60):
            await stream.due.wait()
    stream.news.close()


class Waits:
    """A loop's `call_later`, which only notes for how long: whoever asked is called at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.heartbeats_s: list[float] = []
        self._callback: Callable[[], None] = lambda: None
        monkeypatch.setattr(asyncio.get_running_loop(), "call_later", self._call_later)

    def beat(self) -> None:
        self._callback()

    def _call_later(self, delay_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        if delay_s >= 1:
            self.heartbeats_s.append(delay_s)
            self._callback = callback
        loop = asyncio.get_running_loop()
        return asyncio.TimerHandle(loop.time() + delay_s, callback, (), loop)


async def test_a_replica_at_rest_says_so_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream, waits = Stream(heartbeat_s=1.0, idle_heartbeat_s=5.0), Waits(monkeypatch)

    def beat() -> float:
        waits.beat()
        assert stream.news.take() is not None
        return waits.heartbeats_s[-1]

    stream.put(max_open=3)
    stream.news.take()
    assert [beat() for _ in range(5)] == [2.0, 4.0, 5.0, 5.0, 5.0]

    stream.put(max_open=3, num_running=1)
    stream.news.take()
    assert waits.heartbeats_s[-1] == 1.0
    assert [beat() for _ in range(3)] == [1.0, 1.0, 1.0]  # at work, though nothing is new
