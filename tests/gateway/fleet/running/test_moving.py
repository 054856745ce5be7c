"""The gateway's part of a move: when an attempt is cut off, what the next is told, who hears it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest
from tests.gateway.fleet.scripted_replica import (
    Script,
    ScriptedReplica,
    Step,
    dispatching_to,
    until,
    update,
)

from baton.core.errors import BatonError, DeadlineExceeded, Unavailable
from baton.core.ids import RequestId
from baton.core.messages import GenerateRequest, Pooling, Receipt, TokenUpdate
from baton.core.sampling import FinishReason, SamplingParams
from baton.gateway.fleet.dispatch import ReplicaDispatcher
from baton.gateway.fleet.running.running_request import RunningRequest
from baton.gateway.requests.generations.generation import Generation, RunningGeneration
from baton.router.cache.prompt_names import PromptNames

PROMPT = (1, 2, 3, 4, 5)


def generation(**options: Any) -> Generation:
    sampling = SamplingParams(max_tokens=8)
    return Generation(request_id=RequestId("r"), prompt=PROMPT, sampling=sampling, **options)


def says(*tokens: int, is_last: bool = False) -> Script:
    finish = FinishReason.LENGTH if is_last else None
    return lambda request: [update(request, *tokens, finish=finish, receipt=Receipt())]


def silent(request: GenerateRequest) -> list[Step]:
    return []


def fails(request: GenerateRequest) -> list[Step]:
    return [update(request, error=Unavailable("no room after all"))]


class Reader:
    """A client: what it got, and how it ended."""

    def __init__(self, running: RunningGeneration) -> None:
        self.running = running
        self.tokens: list[int] = []
        self.error: BatonError | None = None
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            async for one in self.running:
                self.tokens += one.tokens
        except BatonError as error:
            self.error = error
        finally:
            await self.running.stop(len(self.tokens))


async def begin(dispatcher: ReplicaDispatcher, **options: Any) -> Reader:
    return Reader(await dispatcher.start(generation(**options)))


def more(replica: ScriptedReplica, *tokens: int, is_last: bool = False) -> TokenUpdate:
    finish = FinishReason.LENGTH if is_last else None
    return update(replica.received[-1], *tokens, finish=finish, receipt=Receipt())


def on_two(there: Script, *, here: Script | None = None) -> tuple[ScriptedReplica, ScriptedReplica]:
    """A pair of which the first takes the first request: the other is full until then."""
    one = ScriptedReplica("one", here or says(10, 11), max_open=1)
    return one, ScriptedReplica("other", there, max_open=0)


def num_open_replicas(dispatcher: ReplicaDispatcher) -> int:
    return sum(view.replica.is_open for view in dispatcher.fleet.view(PromptNames()).decode)


async def test_the_next_attempt_is_told_what_it_takes_over_and_from_whom() -> None:
    one, other = on_two(says(12, is_last=True))
    async with dispatching_to(one, other) as dispatcher:
        reader = await begin(dispatcher, salt=b"tenant")
        await until(lambda: len(reader.tokens) == 2)
        other.offer(max_open=4)

        one.drain()
        await reader.task

        [request] = other.received
        assert (request.attempt, request.output, request.salt) == (2, (10, 11), b"tenant")
        assert request.source == one.info.endpoint
        assert request.is_moving
        assert reader.tokens == [10, 11, 12]
        assert reader.running.receipt.attempts == 2
        assert "attempt 1: one is draining" in reader.running.receipt.notes


async def test_the_old_attempt_is_taken_back_only_when_the_new_one_lives() -> None:
    one, other = on_two(silent)
    async with dispatching_to(one, other) as dispatcher:
        reader = await begin(dispatcher)
        await until(lambda: len(reader.tokens) == 2)
        other.offer(max_open=4)
        one.drain()
        await until(lambda: other.received)
        one.say(more(one, 12, 13))  # of what nobody hears any more
        assert one.cancelled == []

        other.say(more(other, 12))
        await until(lambda: one.cancelled)
        other.say(more(other, 14, is_last=True))
        await reader.task

        assert one.cancelled == [("r", 1, 2)]
        assert reader.tokens == [10, 11, 12, 14]
        assert other.cancelled == []


async def test_until_there_is_room_elsewhere_the_request_goes_on_where_it_is() -> None:
    one, other = on_two(says(14, is_last=True))
    async with dispatching_to(one, other) as dispatcher:
        reader = await begin(dispatcher)
        await until(lambda: len(reader.tokens) == 2)

        one.drain()
        one.say(more(one, 12))
        await until(lambda: len(reader.tokens) == 3)
        one.say(more(one, 13))
        await until(lambda: len(reader.tokens) == 4)
        other.offer(max_open=1)
        await reader.task

        assert other.received[0].output == (10, 11, 12, 13)
        assert reader.tokens == [10, 11, 12, 13, 14]


async def test_a_request_that_ends_meanwhile_does_not_move() -> None:
    one, other = on_two(silent)
    async with dispatching_to(one, other) as dispatcher:
        reader = await begin(dispatcher)
        await until(lambda: len(reader.tokens) == 2)
        one.drain()
        one.say(more(one, 12, is_last=True))
        await reader.task

        other.offer(max_open=1)

        assert reader.tokens == [10, 11, 12]
        assert reader.running.receipt.attempts == 1
        assert other.received == []


async def test_tokens_that_the_client_has_not_asked_for_yet_are_not_drawn_again() -> None:
    one, other = on_two(says(13, is_last=True))
    async with dispatching_to(one, other) as dispatcher:
        running = await dispatcher.start(generation())
        stream = aiter(running)
        first = await anext(stream)
        one.say(more(one, 12))  # the client is slow: it reads nothing now
        await until(lambda: one.num_said == 2)
        other.offer(max_open=4)
        one.drain()
        await until(lambda: other.received)

        rest = [token async for part in stream for token in part.tokens]
        await running.stop(4)

        assert first.tokens == (10, 11)
        assert other.received[0].output == (10, 11, 12)
        assert rest == [12, 13]


async def test_a_move_that_fails_is_tried_elsewhere_with_the_same_source() -> None:
    one, other = on_two(fails)
    third = ScriptedReplica("third", says(12, is_last=True), max_open=0)
    async with dispatching_to(one, other, third) as dispatcher:
        reader = await begin(dispatcher)
        await until(lambda: len(reader.tokens) == 2)
        other.offer(max_open=4)
        third.offer(max_open=4, num_queued_tokens=1)
        await until(lambda: num_open_replicas(dispatcher) == 2)

        one.drain()
        await reader.task

        assert len(other.received) == 1
        [request] = third.received
        assert (request.attempt, request.output, request.is_moving) == (3, (10, 11), True)
        assert request.source == one.info.endpoint
        assert reader.tokens == [10, 11, 12]
        await until(lambda: one.cancelled == [("r", 1, 2)])


async def test_an_embedding_stays() -> None:
    one, other = on_two(silent, here=silent)
    async with dispatching_to(one, other) as dispatcher:
        reader = await begin(dispatcher, pooling=Pooling.MEAN)
        await until(lambda: one.received)
        other.offer(max_open=4)

        one.drain()
        one.say(more(one, is_last=True))
        await reader.task

        assert other.received == []


async def test_a_client_that_leaves_while_a_place_is_waited_for_is_forgotten() -> None:
    one, other = on_two(silent)
    async with dispatching_to(one, other) as dispatcher:
        reader = await begin(dispatcher)
        await until(lambda: len(reader.tokens) == 2)
        one.drain()
        await until(lambda: dispatcher.num_waiting == 1)

        reader.task.cancel()
        with suppress(asyncio.CancelledError):
            await reader.task
        await until(lambda: one.cancelled)

        assert one.cancelled == [("r", 1, 2)]
        assert dispatcher.num_waiting == 0
        other.offer(max_open=4)
        assert other.received == []


async def test_a_time_limit_ends_a_request_in_the_move() -> None:
    one, other = on_two(silent)
    async with dispatching_to(one, other) as dispatcher:
        reader = await begin(dispatcher, time_left_s=600.0)
        await until(lambda: len(reader.tokens) == 2)
        other.offer(max_open=4)
        one.drain()
        await until(lambda: other.received)
        assert isinstance(reader.running, RunningRequest)
        reader.running._ring()  # it is over

        await reader.task

        assert isinstance(reader.error, DeadlineExceeded)
        await until(lambda: one.cancelled and other.cancelled)


@pytest.mark.parametrize("lost", ["the old", "the new"])
async def test_a_link_that_breaks_in_the_move_loses_no_token(lost: str) -> None:
    one, other = on_two(silent)
    third = ScriptedReplica("third", says(12, is_last=True), max_open=0)
    async with dispatching_to(one, other, third) as dispatcher:
        reader = await begin(dispatcher)
        await until(lambda: len(reader.tokens) == 2)
        other.offer(max_open=4)
        one.drain()
        await until(lambda: other.received)
        third.offer(max_open=4)

        if lost == "the old":
            one.cut()
            other.say(more(other, 12, is_last=True))
        else:
            other.offer(max_open=0)
            other.cut()
        await reader.task

        assert reader.tokens == [10, 11, 12]
