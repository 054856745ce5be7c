"""What a replica tells those who follow its prefix cache, from a real engine on its thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest
from tests.in_process_fleet import echo_engine

from baton.core.errors import EngineFailed
from baton.core.ids import Epoch
from baton.core.kv_events import KvEvents
from baton.core.sampling import SamplingParams
from baton.engine import kv_feed
from baton.engine.engine import Engine
from baton.engine.engine_thread import EngineThread
from baton.engine.kv_feed import KvFeed
from baton.engine.request.request import Request
from baton.engine.request.step_report import StepReport
from baton.router.cache.kv_index import KvIndex

REPLICA = Epoch("replica")


class Running:
    """An engine at work, and what it publishes."""

    def __init__(self, engine: Engine, max_names: int) -> None:
        self.engine = engine
        self.thread = EngineThread(engine, self._on_step, on_failure=lambda failure: None)
        self.feed = KvFeed(engine.pool, self.thread, max_names=max_names)
        self._finished: dict[str, asyncio.Event] = {}

    def _on_step(self, report: StepReport) -> None:
        self.feed.publish()
        for output in report.outputs:
            if output.is_finished:
                self.thread.tell(self._finished[output.request.request_id].set)

    async def compute(self, prompt: list[int]) -> None:
        """One request, from start to end."""
        name = str(len(self._finished))
        self._finished[name] = asyncio.Event()
        request = Request(
            request_id=name, prompt=prompt, output=[], sampling=SamplingParams(max_tokens=1)
        )
        await self.thread.call(lambda: self.engine.add(request))
        await self._finished[name].wait()


@asynccontextmanager
async def running(*, num_blocks: int = 64, max_names: int = 1000) -> AsyncIterator[Running]:
    one = Running(echo_engine(num_blocks=num_blocks), max_names)
    one.thread.start()
    try:
        yield one
    finally:
        one.feed.close()
        one.thread.stop(60.0)


async def follow(
    feed: AsyncGenerator[KvEvents, None], index: KvIndex, engine: Engine
) -> list[KvEvents]:
    """Hear events until the index knows what the engine has."""
    heard: list[KvEvents] = []
    while not heard or index.num_blocks(REPLICA) != len(list(engine.pool.prefixes.names())):
        async with asyncio.timeout(60):
            heard.append(await anext(feed))
        index.apply(REPLICA, heard[-1])
    names = list(engine.pool.prefixes.names())
    assert all(index.num_cached_blocks([name]) for name in names)
    return heard


async def test_a_follower_hears_what_there_is_then_what_happens() -> None:
    async with running() as one, aclosing(one.feed.watch()) as feed:
        await one.compute(list(range(20)))
        index = KvIndex()

        [first] = await follow(feed, index, one.engine)
        await one.compute(list(range(100, 140)))
        later = await follow(feed, index, one.engine)

        assert first.is_snapshot
        assert not any(events.is_snapshot for events in later)
        assert index.num_blocks(REPLICA) == 5 + 10


async def test_a_follower_who_knows_everything_waits() -> None:
    async with running() as one, aclosing(one.feed.watch()) as feed:
        index = KvIndex()
        await one.compute(list(range(20)))
        await follow(feed, index, one.engine)
        await one.compute(list(range(50, 90)))
        await follow(feed, index, one.engine)

        waiting = asyncio.ensure_future(anext(feed))
        await asyncio.sleep(0.05)
        assert not waiting.done()

        await one.compute(list(range(100, 140)))
        index.apply(REPLICA, await waiting)
        assert index.num_blocks(REPLICA) > 15


async def test_evictions_are_heard_of() -> None:
    async with running(num_blocks=12) as one, aclosing(one.feed.watch()) as feed:
        index = KvIndex()
        for start in range(0, 200, 40):
            await one.compute(list(range(start, start + 40)))
            await follow(feed, index, one.engine)

        assert index.num_blocks(REPLICA) <= 12


async def test_all_followers_hear_the_same_whenever_they_came() -> None:
    async with running() as one, aclosing(one.feed.watch()) as early:
        indexes = [KvIndex(), KvIndex()]
        await follow(early, indexes[0], one.engine)
        await one.compute(list(range(20)))
        async with aclosing(one.feed.watch()) as late:
            await follow(late, indexes[1], one.engine)
            await one.compute(list(range(50, 90)))
            for feed, index in zip((early, late), indexes, strict=True):
                await follow(feed, index, one.engine)


async def test_who_falls_too_far_behind_gets_a_snapshot_on_the_same_stream() -> None:
    async with running(max_names=8) as one, aclosing(one.feed.watch()) as feed:
        index = KvIndex()
        await follow(feed, index, one.engine)
        for start in range(0, 240, 40):
            await one.compute(list(range(start, start + 40)))

        [caught_up] = await follow(feed, index, one.engine)

        assert caught_up.is_snapshot
        assert index.num_blocks(REPLICA) == 60


@pytest.mark.parametrize("few_named", [0, kv_feed.FEW_NAMED])
async def test_what_changes_while_a_snapshot_is_read_is_heard_of_after_it(
    monkeypatch: pytest.MonkeyPatch, few_named: int
) -> None:
    monkeypatch.setattr(kv_feed, "PART_BLOCKS", 4)
    monkeypatch.setattr(kv_feed, "FEW_NAMED", few_named)
    async with running(num_blocks=12) as one, aclosing(one.feed.watch()) as feed:
        index = KvIndex()
        await one.compute(list(range(44)))

        first = await anext(feed)
        await one.compute(list(range(100, 140)))
        [second, last] = [await anext(feed) for _ in range(2)]
        for part in (first, second, last):
            index.apply(REPLICA, part)

        assert [(part.part, part.has_more) for part in (first, second, last)] == [
            (0, True),
            (1, True),
            (2, False),
        ]
        assert len({part.first_sequence for part in (first, second, last)}) == 1
        await follow(feed, index, one.engine)
        assert index.num_blocks(REPLICA) == len(list(one.engine.pool.prefixes.names()))


async def test_a_snapshot_of_a_large_pool_with_few_names_is_one_part() -> None:
    async with running(num_blocks=20_000) as one:
        for num_named in (0, 10):
            async with aclosing(one.feed.watch()) as feed:
                part = await anext(feed)
            assert not part.has_more
            assert len(part.events[0].names) == num_named * 16
            await one.compute(list(range(40)))


async def test_a_snapshot_is_read_while_the_engine_is_at_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kv_feed, "PART_BLOCKS", 16)
    async with running() as one, aclosing(one.feed.watch()) as feed:
        await one.compute(list(range(200)))
        index, may_proceed = KvIndex(), threading.Event()
        index.apply(REPLICA, await anext(feed))
        one.thread.post(lambda: wait_for(may_proceed))

        for _ in range(3):
            index.apply(REPLICA, await anext(feed))

        assert index.num_blocks(REPLICA) == 50
        may_proceed.set()


def wait_for(event: threading.Event) -> None:
    """A step that takes long."""
    event.wait(120.0)


async def test_changes_between_steps_are_heard_of_once_they_are_published() -> None:
    async with running() as one, aclosing(one.feed.watch()) as feed:
        await one.compute(list(range(20)))
        index = KvIndex()
        await follow(feed, index, one.engine)

        await one.thread.call(one.engine.pool.reset_cache)
        one.thread.post(one.feed.publish)

        await follow(feed, index, one.engine)
        assert index.num_blocks(REPLICA) == 0


async def test_closing_ends_every_watch() -> None:
    async with running() as one:
        feeds = [one.feed.watch() for _ in range(2)]
        for feed in feeds:
            await anext(feed)
        waiting = [asyncio.ensure_future(anext(feed)) for feed in feeds]
        await asyncio.sleep(0)

        one.feed.close()

        for one_waiting in waiting:
            with pytest.raises(StopAsyncIteration):
                await one_waiting


async def test_an_engine_that_has_ended_cannot_be_followed() -> None:
    async with running() as one:
        one.thread.stop(60.0)

        with pytest.raises(EngineFailed):
            await anext(one.feed.watch())
