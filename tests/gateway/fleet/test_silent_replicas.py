"""Decode replicas that keep their streams and answer nobody: stopped, say."""

from __future__ import annotations

import asyncio

from tests.gateway.fleet.scripted_replica import (
    IMPATIENT,
    ScriptedReplica,
    dispatching_to,
    until,
)
from tests.gateway.fleet.test_moving import Reader, begin, more, on_two, says

from baton.core.messages import Pooling
from baton.proto.channels import Channels


def impatient() -> Channels:
    return Channels(patience=IMPATIENT)


async def end_of(reader: Reader) -> None:
    async with asyncio.timeout(10):
        await reader.task


async def test_a_request_goes_on_elsewhere_behind_what_came_and_is_taken_back_here() -> None:
    one, other = on_two(says(12, is_last=True))
    async with dispatching_to(one, other, channels=impatient()) as dispatcher:
        reader = await begin(dispatcher)
        await until(lambda: len(reader.tokens) == 2)
        other.offer(max_open=4)

        one.goes_on.clear()
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

        one.goes_on.clear()
        await until(lambda: dispatcher.num_waiting)
        one.goes_on.set()
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
        one.goes_on.clear()
        await until(lambda: not dispatcher.is_ready())
        [trouble] = dispatcher.fleet.trouble_by_replica().values()
        assert trouble == "it answers nobody"

        one.goes_on.set()
        await until(dispatcher.is_ready)
        one.say(more(one, 12, is_last=True))
        await end_of(first)

        assert first.tokens == [10, 12]


async def test_an_embedding_is_computed_anew_elsewhere() -> None:
    one, other = on_two(says(is_last=True), here=lambda request: [])
    async with dispatching_to(one, other, channels=impatient()) as dispatcher:
        reader = await begin(dispatcher, pooling=Pooling.MEAN)
        other.offer(max_open=4)

        one.goes_on.clear()
        await end_of(reader)

        [request] = other.received
        assert (request.attempt, request.pooling) == (2, Pooling.MEAN)
