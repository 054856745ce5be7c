"""Requests that come while no replica is there: how long they wait, and what they are told."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.gateway.fleet.asking import generation, tokens_of
from tests.gateway.fleet.scripted_replica import (
    ScriptedReplica,
    answers,
    dispatching_to,
    silent,
    snapshot,
    until,
)

from baton.core.clock import ManualClock
from baton.core.errors import (
    DeadlineExceeded,
    Unavailable,
)
from baton.core.ids import ReplicaId
from baton.core.replicas import Membership, Role, StartingReplica
from baton.gateway.fleet.membership.failed_starts import AGAIN_S, MANY
from baton.gateway.requests.generations.generation import RunningGeneration
from baton.router.placer import Routing
from baton.router.policies.cost import Cost


async def test_a_request_without_any_replica_is_unavailable_after_the_grace_period() -> None:
    async with dispatching_to(no_replica_grace_s=0.05) as dispatcher:
        with pytest.raises(Unavailable, match="no decode replica takes requests"):
            await dispatcher.start(generation())


async def test_who_waits_where_replicas_start_for_it_is_told_so_and_served() -> None:
    replica = ScriptedReplica("d", answers(7))
    await replica.start()
    async with dispatching_to(no_replica_grace_s=60) as dispatcher:
        assert not dispatcher.is_ready()
        routing = Routing(Cost(), local_prefill_tokens=0)
        dispatcher.reconfigure(routing, max_waiting=9, no_replica_grace_s=0.1, cold_start_s=20)
        starts = StartingReplica(replica_id=ReplicaId("d"), role=Role.DECODE, stage="importing")
        await dispatcher.fleet.apply(replace(snapshot(), starting=(starts,)))
        asked = generation()
        waiting = asyncio.create_task(dispatcher.start(asked))
        await until(lambda: dispatcher.num_waiting == 1)

        told = dispatcher.progress(asked)
        assert dispatcher.is_ready()  # to take requests
        assert told is not None and (told.state, told.eta_ms) == ("starting", 20_000)
        assert dispatcher.traffic().num_for_decode == 1
        await asyncio.sleep(0.15)  # longer than it would wait if nobody started

        # From here on it is no longer awaited, and takes its time to be connected.
        dispatcher.reconfigure(routing, max_waiting=9, no_replica_grace_s=60, cold_start_s=20)
        await dispatcher.fleet.apply(snapshot(replica.info))
        assert await tokens_of(await waiting) == [7]
    await replica.stop()


async def test_who_waits_for_replicas_that_fail_again_and_again_is_told_why() -> None:
    clock, replica = ManualClock(), ScriptedReplica("d", answers(7))
    await replica.start()

    def starting(number: int, **failure: Any) -> Membership:
        one = StartingReplica(
            replica_id=ReplicaId(f"d{number}"), role=Role.DECODE, stage="loading weights", **failure
        )
        return replace(snapshot(), starting=(one,))

    async with dispatching_to(no_replica_grace_s=60, clock=clock) as dispatcher:
        routing = Routing(Cost(), local_prefill_tokens=0)
        dispatcher.reconfigure(routing, max_waiting=9, no_replica_grace_s=60, cold_start_s=20)

        async def waiting_one() -> asyncio.Task[RunningGeneration]:
            waiting = asyncio.create_task(dispatcher.start(generation()))
            await until(lambda: dispatcher.num_waiting == 1)
            return waiting

        waiting = await waiting_one()
        for number in range(MANY):
            assert dispatcher.is_ready() and not waiting.done()
            await dispatcher.fleet.apply(starting(number))
            await dispatcher.fleet.apply(starting(number, failure="/models/x: no such file"))
        with pytest.raises(
            Unavailable, match=r"d2 failed while loading weights \(3 in a row"
        ) as told:
            await asyncio.wait_for(waiting, 120)
        assert "/models" not in str(told.value)
        assert not dispatcher.is_ready()
        with pytest.raises(Unavailable, match="3 in a row"):
            await asyncio.wait_for(dispatcher.start(generation()), 120)

        clock.advance(AGAIN_S)
        assert dispatcher.is_ready()
        waiting = await waiting_one()
        await dispatcher.fleet.apply(starting(4, failure="no memory"))
        with pytest.raises(Unavailable, match="4 in a row"):
            await asyncio.wait_for(waiting, 120)
        await dispatcher.fleet.apply(snapshot(replica.info))
        await until(dispatcher.is_ready)
        assert await tokens_of(await dispatcher.start(generation())) == [7]
        await dispatcher.fleet.apply(starting(5, failure="no memory"))
        assert dispatcher.is_ready()
    await replica.stop()


async def test_a_start_that_is_under_way_is_waited_for_though_another_failed() -> None:
    clock = ManualClock()

    def starting(failure: str = "") -> Membership:
        ones = (
            StartingReplica(
                replica_id=ReplicaId(name),
                role=Role.DECODE,
                stage="loading weights",
                failure=failure if name == "d1" else "",
                is_final=bool(failure) and name == "d1",
            )
            for name in ("d1", "d2")
        )
        return replace(snapshot(), starting=tuple(ones))

    async with dispatching_to(no_replica_grace_s=60, clock=clock) as dispatcher:
        routing = Routing(Cost(), local_prefill_tokens=0)
        dispatcher.reconfigure(routing, max_waiting=9, no_replica_grace_s=60, cold_start_s=20)
        await dispatcher.fleet.apply(starting())

        await dispatcher.fleet.apply(starting("this node's disk is full"))
        is_ready = dispatcher.is_ready()
        await dispatcher.fleet.apply(snapshot())

        assert is_ready
        assert not dispatcher.is_ready()


async def test_a_requests_own_time_limit_counts_even_without_any_replica() -> None:
    async with dispatching_to(no_replica_grace_s=60) as dispatcher:
        with pytest.raises(DeadlineExceeded):
            await dispatcher.start(generation(time_left_s=0.05))


async def test_the_grace_period_begins_when_the_last_replica_goes() -> None:
    replica = ScriptedReplica("d", silent, max_open=0)
    async with dispatching_to(replica, no_replica_grace_s=0.05) as dispatcher:
        waiting = asyncio.create_task(dispatcher.start(generation()))
        await asyncio.sleep(0.1)
        assert not waiting.done()

        await replica.stop()

        with pytest.raises(Unavailable, match="no decode replica takes requests"):
            await waiting


async def test_the_grace_period_is_over_when_a_replica_comes_even_a_full_one() -> None:
    replica = ScriptedReplica("d", answers(1), max_open=0)
    await replica.start()
    async with dispatching_to(no_replica_grace_s=60) as dispatcher:
        waiting = asyncio.create_task(dispatcher.start(generation()))
        await until(lambda: dispatcher.num_waiting == 1)
        await dispatcher.fleet.apply(snapshot(replica.info))
        await until(lambda: dispatcher.fleet.connected)
        await until(lambda: [limit.when() for limit in dispatcher._replica_wait.limits] == [None])
        assert not waiting.done()

        replica.offer(max_open=1)

        assert await tokens_of(await waiting) == [1]
    await replica.stop()


async def test_what_is_missing_follows_the_replicas_until_nothing_is() -> None:
    wanted = {Role.DECODE: 1}
    replica = ScriptedReplica("d", silent)
    async with dispatching_to() as dispatcher:
        [before] = dispatcher.missing(wanted)
        complete = asyncio.create_task(dispatcher.until_complete(wanted))
        await replica.start()
        await dispatcher.fleet.apply(snapshot(replica.info))
        await complete
        assert dispatcher.missing(wanted) == ()

        await dispatcher.fleet.apply(snapshot(replace(replica.info, is_ready=False)))
        [draining] = dispatcher.missing(wanted)
        await replica.stop()

    assert before.waiting_for == "Ray to start 1 process"
    assert draining.waiting_for == "d: draining"
