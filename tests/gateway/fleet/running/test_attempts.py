"""A request is told to replicas until one answers it. They say what the tests script."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.gateway.fleet.asking import PROMPT, ask, generation, tokens_of
from tests.gateway.fleet.scripted_replica import (
    Cut,
    ScriptedReplica,
    answers,
    breaks_after,
    dispatching_to,
    fails_with,
    silent,
    until,
    update,
)

from baton.core.clock import ManualClock
from baton.core.errors import (
    BatonError,
    Cancelled,
    DeadlineExceeded,
    InvalidRequest,
    Overloaded,
    Unavailable,
)
from baton.core.ids import RequestId
from baton.core.messages import GenerateRequest, Receipt
from baton.core.sampling import FinishReason
from baton.gateway.fleet.running.running_request import MAX_ATTEMPTS, RunningRequest


async def test_a_replica_is_told_everything_that_continues_the_request_exactly() -> None:
    replica = ScriptedReplica("d", answers(1, 2, 3, 4))
    async with dispatching_to(replica) as dispatcher:
        tokens, _ = await ask(dispatcher)

        [request] = replica.received
        assert tokens == [1, 2, 3, 4]
        assert request == GenerateRequest(
            request_id=RequestId("r"),
            attempt=1,
            prompt=PROMPT,
            sampling=generation().sampling,
            salt=b"tenant",
            time_left_ms=request.time_left_ms,
        )
        assert request.time_left_ms is not None
        assert 0 < request.time_left_ms <= 60_000


async def test_what_the_client_has_already_is_given_to_the_next_attempt() -> None:
    replica = ScriptedReplica("d", breaks_after(1, 2), answers(3, 4))
    async with dispatching_to(replica) as dispatcher:
        tokens, receipt = await ask(dispatcher)

        assert tokens == [1, 2, 3, 4]
        assert [(r.attempt, r.output) for r in replica.received] == [(1, ()), (2, (1, 2))]
        assert {r.sampling for r in replica.received} == {generation().sampling}
        assert receipt.attempts == 2
        assert receipt.output_tokens == 4


async def test_another_replica_is_preferred_to_the_one_that_failed() -> None:
    failing = ScriptedReplica("failing", fails_with(Unavailable("the device is gone")))
    healthy = ScriptedReplica("healthy", answers(1))
    async with dispatching_to(failing, healthy) as dispatcher:
        tokens, receipt = await ask(dispatcher, "drawn to the one that fails: y")

        assert tokens == [1]
        assert (len(failing.received), len(healthy.received)) == (1, 1)
        assert receipt.notes == ("attempt 1: the device is gone",)


@pytest.mark.parametrize("error", [Unavailable("no"), Overloaded("no"), Cancelled("no")])
async def test_a_fault_of_the_replica_is_tried_again_but_not_for_ever(error: BatonError) -> None:
    replica = ScriptedReplica("d", fails_with(error))
    async with dispatching_to(replica) as dispatcher:
        with pytest.raises(Unavailable, match=f"gave up after {MAX_ATTEMPTS} attempts; .*no"):
            await ask(dispatcher)

        assert [r.attempt for r in replica.received] == list(range(1, MAX_ATTEMPTS + 1))
        assert dispatcher.fleet.connected[0].num_open == 0


@pytest.mark.parametrize("error", [InvalidRequest("too long"), DeadlineExceeded("too late")])
async def test_a_fault_of_the_request_is_not_tried_again(error: BatonError) -> None:
    replica = ScriptedReplica("d", fails_with(error))
    async with dispatching_to(replica) as dispatcher:
        with pytest.raises(type(error), match=str(error)):
            await ask(dispatcher)

        assert len(replica.received) == 1


async def test_the_receipts_of_all_attempts_add_up() -> None:
    spent = Receipt(
        decode_replica="d", cached_tokens=2, computed_tokens=10, output_tokens=2, kv_bytes=100,
        queue_ms=1.0, prefill_ms=2.0, transfer_ms=3.0, decode_ms=4.0, notes=("P refused",),
    )  # fmt: skip
    rest = Receipt(
        decode_replica="d", prefill_replica="p", cached_tokens=3, computed_tokens=5,
        output_tokens=1, kv_bytes=50, queue_ms=10.0, prefill_ms=20.0, transfer_ms=30.0,
        decode_ms=40.0, transport="grpc",
    )  # fmt: skip
    replica = ScriptedReplica(
        "d",
        lambda request: [update(request, 1, 2, receipt=spent), update(request, 3), Cut()],
        lambda request: [update(request, 4, finish=FinishReason.LENGTH, receipt=rest)],
        max_open=0,
    )
    clock = ManualClock()
    async with dispatching_to(replica, clock=clock) as dispatcher:
        asking = asyncio.create_task(ask(dispatcher))
        await asyncio.sleep(0)
        clock.advance(0.5)  # while it waits at the gateway
        replica.offer(max_open=1)
        tokens, receipt = await asking

    assert tokens == [1, 2, 3, 4]
    assert receipt == replace(
        rest,
        attempts=2,
        placement="no prefill replica: computed locally",
        prompt_tokens=len(PROMPT),
        cached_tokens=2,  # of the attempt that answered for the prompt
        output_tokens=4,
        computed_tokens=10 + 1 + 5,  # token 3 came after the last receipt of the first attempt
        kv_bytes=150,
        queue_ms=500.0 + 11.0,
        prefill_ms=22.0,
        transfer_ms=33.0,
        decode_ms=44.0,
        notes=receipt.notes,
    )
    assert receipt.notes[0] == "P refused"
    assert receipt.notes[1].startswith("attempt 1: decode replica d was lost")


async def test_an_attempt_that_gave_nothing_has_not_answered_for_the_prompt() -> None:
    found = Receipt(cached_tokens=3, output_tokens=1)
    replica = ScriptedReplica(
        "d",
        fails_with(Unavailable("no")),
        lambda request: [update(request, 1, finish=FinishReason.LENGTH, receipt=found)],
    )
    async with dispatching_to(replica) as dispatcher:
        _, receipt = await ask(dispatcher)

        assert receipt.cached_tokens == 3


async def test_a_client_that_leaves_takes_its_request_back_and_says_what_it_got() -> None:
    replica = ScriptedReplica("d", lambda request: [update(request, 1, 2, 3)])
    async with dispatching_to(replica) as dispatcher:
        running = await dispatcher.start(generation())
        await anext(aiter(running))

        await running.stop(2)
        await running.stop(2)

        await until(lambda: replica.cancelled)
        assert replica.cancelled == [("r", 1, 2)]
        assert dispatcher.fleet.connected[0].num_open == 0


async def test_only_tokens_of_the_last_attempt_are_reported_to_its_replica() -> None:
    replica = ScriptedReplica("d", breaks_after(1, 2), lambda request: [update(request, 3, 4, 5)])
    async with dispatching_to(replica) as dispatcher:
        running = await dispatcher.start(generation())
        updates = aiter(running)
        await anext(updates)
        await anext(updates)

        await running.stop(num_delivered=4)

        await until(lambda: replica.cancelled)
        assert replica.cancelled == [("r", 2, 2)]


async def test_a_request_that_ended_by_itself_is_not_taken_back() -> None:
    replica = ScriptedReplica("d", answers(1))
    async with dispatching_to(replica) as dispatcher:
        await ask(dispatcher)
        await ask(dispatcher)

        assert replica.cancelled == []


async def test_the_time_limit_ends_a_request_whose_replica_says_nothing() -> None:
    replica = ScriptedReplica("d", silent)
    async with dispatching_to(replica) as dispatcher:
        time_left_s = 0.1
        while not replica.received:  # a busy machine may not have placed it by then
            with pytest.raises(DeadlineExceeded) as ended:
                await tokens_of(await dispatcher.start(generation(time_left_s=time_left_s)))
            time_left_s *= 2

    assert "after 0 tokens" in str(ended.value)


async def test_tokens_that_came_in_time_are_delivered_before_the_limit_is_felt() -> None:
    replica = ScriptedReplica("d", lambda request: [update(request, 1, 2)])
    async with dispatching_to(replica) as dispatcher:
        running = await dispatcher.start(generation())
        assert isinstance(running, RunningRequest) and running._placed is not None
        updates, attempt = aiter(running), running._placed.attempt
        await until(lambda: attempt._updates)
        running._ring()  # the limit is over, and the client reads late

        assert (await anext(updates)).tokens == (1, 2)
        with pytest.raises(DeadlineExceeded, match="after 2 tokens"):
            await anext(updates)


async def test_the_time_limit_counts_over_all_attempts() -> None:
    clock, replica = ManualClock(), ScriptedReplica("d", breaks_after(1), silent)
    async with dispatching_to(replica, clock=clock) as dispatcher:
        running = await dispatcher.start(generation(time_left_s=600.0))
        assert isinstance(running, RunningRequest)
        clock.advance(200.0)
        reading = asyncio.create_task(tokens_of(running))
        await until(lambda: len(replica.received) == 2)
        assert running._alarm is not None
        assert running._alarm.when() <= asyncio.get_running_loop().time() + 400.0
        running._ring()  # it is over

        with pytest.raises(DeadlineExceeded, match="after 1 token"):
            await reading

        told = [(request.attempt, request.time_left_ms) for request in replica.received]
        assert told == [(1, 600_000), (2, 400_000)]
