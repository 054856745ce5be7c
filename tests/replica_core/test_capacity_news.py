"""When a gateway hears of a replica's capacity: at once what opens, soon the rest."""

from __future__ import annotations

import asyncio

from baton.core.replicas import Capacity
from baton.core.step_times import StepTimes
from baton.replica_core.capacity_news import CapacityNews

TIMES = StepTimes(constant_s=0.01, num_decode_steps=3)


class Stream:
    def __init__(self, heartbeat_s: float = 60.0) -> None:
        self.due = asyncio.Event()
        self.news = CapacityNews(self.due.set, lambda: TIMES, heartbeat_s)

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
    async with asyncio.timeout(5):
        await stream.due.wait()
    assert stream.news.take() == Capacity(max_open=3, credit_id=1, credit_tokens=600)
    assert stream.news.take() is None
    stream.news.close()


async def test_without_news_the_same_is_said_again_with_how_long_steps_take() -> None:
    stream = Stream(heartbeat_s=0.01)
    stream.put(max_open=3)
    for _ in range(3):
        stream.due.clear()
        assert stream.news.take() == Capacity(max_open=3, step_times=TIMES)
        async with asyncio.timeout(5):
            await stream.due.wait()
    stream.news.close()
