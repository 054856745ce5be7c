"""Decode replicas that keep their streams and answer nobody: stopped, say."""

from __future__ import annotations

import asyncio

import pytest
from tests.gateway.fleet.running.test_moving import Reader, begin, more, on_two, says
from tests.gateway.fleet.scripted_replica import (
    IMPATIENT,
    ScriptedReplica,
    dispatching_to,
    silent,
    snapshot,
    until,
)

from baton.core.messages import Pooling
from baton.gateway.fleet.running.running_request import MAX_SILENT_MOVES
from baton.proto.channels import Channels


def impatient() -> Channels:
    return Channels(ping_timing=IMPATIENT)


async def end_of(reader: Reader) -> None:
    async with asyncio.timeout(60):
        await reader.task


async def test_a_request_goes_on_elsewhere_behind_what_came_and_is_taken_back_here() -> None:
    one, other = on_two(says(12, is_last=True))
    async with dispatching_to(one, other, channels=impatient()) as dispatcher:
        reader = await begin(dispatcher)
        await until(lambda: len(reader.tokens) == 2)
        other.offer(max_open=4)

        one.may_proceed.clear()
        await end_of(reader)
        one.say(more(one, 12, is_last=True))  # it comes back, and finds itself taken back
        await until(lambda: one.cancelled)

        [request] = other.received
        assert (request.attempt, request.output) == (2, (10, 11))
        assert request.source is None  # which could not answer
        assert not request.is_moving
        assert reader.tokens == [10, 11, 12]
        assert "attempt 1: one answers nobody" in reader.running.receipt.notes
        assert one.cancelled == [("r", 1, 2)]


async def test_while_nobody_else_has_room_it_waits_and_goes_on_where_it_was() -> None:
    one, other = on_two(says(12, is_last=True))
    async with dispatching_to(one, other, channels=impatient()) as dispatcher:
        reader = await begin(dispatcher)
        await until(lambda: len(reader.tokens) == 2)

        one.may_proceed.clear()
        await until(lambda: dispatcher.num_waiting)
        one.may_proceed.set()
        one.say(more(one, 12))
        await until(lambda: len(reader.tokens) == 3)
        other.offer(max_open=4)
        await until(lambda: not dispatcher.num_waiting)
        one.say(more(one, 13, is_last=True))
        await end_of(reader)

        assert reader.tokens == [10, 11, 12, 13]
        assert not other.received
        assert reader.running.receipt.attempts == 1


async def test_nothing_is_placed_on_it_until_it_speaks() -> None:
    one = ScriptedReplica("one", says(10), says(11, is_last=True))
    async with dispatching_to(one, channels=impatient()) as dispatcher:
        first = await begin(dispatcher)
        one.may_proceed.clear()
        await until(lambda: not dispatcher.is_ready())
        [trouble] = dispatcher.fleet.trouble_by_replica().values()
        assert trouble == "it answers nobody"

        one.may_proceed.set()
        await until(dispatcher.is_ready)
        one.say(more(one, 12, is_last=True))
        await end_of(first)

        assert first.tokens == [10, 12]


async def test_an_embedding_is_computed_anew_elsewhere() -> None:
    one, other = on_two(says(is_last=True), here=lambda request: [])
    async with dispatching_to(one, other, channels=impatient()) as dispatcher:
        reader = await begin(dispatcher, pooling=Pooling.MEAN)
        other.offer(max_open=4)

        one.may_proceed.clear()
        await end_of(reader)

        [request] = other.received
        assert (request.attempt, request.pooling) == (2, Pooling.MEAN)


@pytest.mark.parametrize("why", ["silent", "draining"])
async def test_a_request_that_found_no_place_in_time_moves_when_another_replica_comes(
    why: str,
) -> None:
    one, other = ScriptedReplica("one", says(10)), ScriptedReplica("other", says(11, is_last=True))
    async with dispatching_to(one, channels=impatient()) as dispatcher:
        reader = await begin(dispatcher)
        await until(lambda: reader.tokens)
        if why == "silent":
            one.may_proceed.clear()
        else:
            one.drain()
        await until(lambda: dispatcher.num_waiting)
        for patience in dispatcher._replica_wait.limits:  # it ends
            patience.reschedule(asyncio.get_running_loop().time())
        await until(lambda: not dispatcher.num_waiting)

        await other.start()
        await dispatcher.fleet.apply(snapshot(one.info, other.info))
        await until(reader.task.done)

        assert reader.tokens == [10, 11]
        assert reader.error is None
        await other.stop()


async def test_a_request_does_not_go_to_and_fro_between_replicas_that_pause_now_and_then() -> None:
    here, there = (ScriptedReplica(name, silent, max_open=4) for name in ("one", "other"))
    async with dispatching_to(here, there, channels=impatient()) as dispatcher:
        reader = await begin(dispatcher)
        await until(lambda: here.received or there.received)
        if there.received:
            here, there = there, here
        for _ in range(MAX_SILENT_MOVES):
            num_before = len(there.received)
            here.may_proceed.clear()
            await until(lambda n=num_before, to=there: len(to.received) > n)  # type: ignore[misc]
            here.may_proceed.set()
            await until(lambda: all(link.answers for link in dispatcher.fleet.connected))
            here, there = there, here

        here.may_proceed.clear()
        await until(lambda: not all(link.answers for link in dispatcher.fleet.connected))
        here.say(more(here, 10, is_last=True))
        await until(reader.task.done)

        assert reader.tokens == [10]
        assert reader.running.receipt.attempts == 1 + MAX_SILENT_MOVES
