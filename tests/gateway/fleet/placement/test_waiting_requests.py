"""How requests wait for a place, through both lines. The replicas say what the tests script."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.gateway.fleet.asking import generation, tokens_of
from tests.gateway.fleet.known_replicas import make_replica
from tests.gateway.fleet.scripted_replica import (
    ScriptedReplica,
    answers,
    dispatching_to,
    silent,
    snapshot,
    until,
)
from tests.gateway.fleet.small_fleet import P

from baton.core.clock import ManualClock
from baton.core.errors import (
    DeadlineExceeded,
    Overloaded,
)
from baton.core.ids import RequestId
from baton.core.replicas import Role
from baton.gateway.fleet.placement import waiting_requests
from baton.router.cache.kv_index import KvIndex
from baton.router.placer import LINE_PER_REPLICA
from baton.router.table.numbering import PrefixOverlaps


async def test_requests_wait_their_turn_while_the_replica_is_full() -> None:
    replica = ScriptedReplica("d", silent, answers(2), max_open=1)
    async with dispatching_to(replica) as dispatcher:
        first = await dispatcher.start(generation("first"))
        waiting = asyncio.create_task(dispatcher.start(generation("second")))
        await asyncio.sleep(0.05)
        assert not waiting.done()

        await first.stop(0)

        assert await tokens_of(await waiting) == [2]


async def test_a_smaller_priority_takes_the_next_free_place() -> None:
    replica = ScriptedReplica("d", silent, answers(1), max_open=1)
    async with dispatching_to(replica) as dispatcher:
        first = await dispatcher.start(generation("first"))
        batch = asyncio.create_task(dispatcher.start(replace(generation("batch"), priority=9)))
        urgent = asyncio.create_task(dispatcher.start(replace(generation("urgent"), priority=-1)))
        await until(lambda: dispatcher.num_waiting == 2)

        await first.stop(0)
        await (await urgent).stop(0)
        await batch

        await until(lambda: len(replica.received) == 3)
        names = [(request.request_id, request.priority) for request in replica.received]
        assert names == [("first", 0), ("urgent", -1), ("batch", 9)]


async def test_a_request_that_waits_for_room_ends_at_its_own_time_limit() -> None:
    async with dispatching_to(ScriptedReplica("d", silent, max_open=0)) as dispatcher:
        with pytest.raises(DeadlineExceeded, match="no room on any decode replica"):
            await dispatcher.start(generation(time_left_s=0.05))


async def test_who_waits_for_a_prefill_replica_is_told_how_far_it_is_and_what_it_waited_for() -> (
    None
):
    replica = ScriptedReplica("d", silent, silent)
    async with dispatching_to(replica) as dispatcher:
        await dispatcher.fleet.apply(snapshot(replica.info, P))
        candidate = dispatcher.fleet.loads.candidate(P.epoch)
        assert candidate is not None
        prompt = tuple(range(100))
        first = await dispatcher.start(replace(generation("first"), prompt=prompt))
        candidate.credit_tokens = 0
        asked = replace(generation("second", time_left_s=0.3), prompt=prompt)
        second = asyncio.create_task(dispatcher.start(asked))
        await until(lambda: dispatcher.num_waiting == 1)

        told = dispatcher.progress(asked)

        assert told is not None and (told.state, told.position) == ("in_line", 1)
        with pytest.raises(DeadlineExceeded, match="no room on any prefill replica"):
            await second
        assert dispatcher.progress(asked) is None
        await first.stop(0)


async def test_a_full_fleet_is_not_asked_again_and_again_what_it_has_cached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_up: list[Sequence[bytes]] = []
    honest = KvIndex.cached

    def look_up(self: KvIndex, names: Sequence[bytes]) -> PrefixOverlaps:
        looked_up.append(names)
        return honest(self, names)

    monkeypatch.setattr(KvIndex, "cached", look_up)
    replica = ScriptedReplica("d", answers(1), max_open=0)
    async with dispatching_to(replica) as dispatcher:
        long = replace(generation(), prompt=tuple(range(64)))
        starting = asyncio.create_task(dispatcher.start(long))
        for _ in range(20):
            replica.offer(max_open=0)
            await asyncio.sleep(0.005)
        assert looked_up == []

        replica.offer(max_open=1)

        assert await tokens_of(await starting) == [1]
        assert len(looked_up) == 1


async def test_who_may_wait_no_longer_for_a_place_is_refused() -> None:
    async with dispatching_to(ScriptedReplica("d", silent, max_open=0)) as dispatcher:
        with pytest.raises(Overloaded, match=r"within 0\.05 s, and it may wait no longer"):
            await dispatcher.start(replace(generation(), max_wait_s=0.05))
        assert dispatcher.num_waiting == 0


async def test_a_request_that_needs_no_prefill_replica_passes_a_full_line_for_one() -> None:
    """One computes, four stand in its line, one waits outside: of 100 tokens each."""
    replica = ScriptedReplica("d", silent, max_open=8)
    busy = make_replica("p", role=Role.PREFILL)
    clock = ManualClock()
    long = replace(generation(), prompt=tuple(range(100)))
    async with dispatching_to(replica, clock=clock) as dispatcher:
        await dispatcher.fleet.apply(snapshot(replica.info, busy))
        await until(lambda: dispatcher.fleet.warm_up.is_over)
        names = [RequestId(f"long {number}") for number in range(2 + LINE_PER_REPLICA)]
        tasks = [
            asyncio.create_task(dispatcher.start(replace(long, request_id=name))) for name in names
        ]
        await until(lambda: dispatcher.num_waiting == len(tasks) - 1)

        running = await dispatcher.start(generation("short"))

        assert dispatcher.num_waiting == len(tasks) - 1
        assert "3 of 3 tokens uncached, too few" in running.receipt.placement
        await running.stop(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_line_is_looked_after_though_nothing_is_heard_and_only_while_somebody_stands_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting_requests, "LOOK_S", 0.005)
    replica = ScriptedReplica("d", silent, silent)
    async with dispatching_to(replica) as dispatcher:
        looks: list[None] = []
        waiting = dispatcher._waiting
        change = waiting.on_fleet_change

        def look() -> None:
            looks.append(None)
            change()

        monkeypatch.setattr(waiting, "on_fleet_change", look)
        for heard in (dispatcher.fleet, dispatcher.fleet.loads):  # what is heard is no look
            monkeypatch.setattr(heard, "_on_change", change)
        await dispatcher.fleet.apply(snapshot(replica.info, P))
        candidate = dispatcher.fleet.loads.candidate(P.epoch)
        assert candidate is not None
        prompt = tuple(range(100))
        first = await dispatcher.start(replace(generation("first"), prompt=prompt))
        room, candidate.credit_tokens = candidate.credit_tokens, 0
        asked = replace(generation("second", time_left_s=20.0), prompt=prompt)
        second = asyncio.create_task(dispatcher.start(asked))
        await until(lambda: len(waiting._line) == 1)
        looking = asyncio.create_task(waiting.look_after())
        await until(lambda: len(looks) > 1)
        candidate.credit_tokens = room
        placed = await second

        await until(lambda: not waiting._line.has_line.is_set())
        looks.clear()
        await asyncio.sleep(0.05)
        assert not looks
        looking.cancel()
        for one in (first, placed):
            await one.stop(0)
