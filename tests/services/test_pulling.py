"""A prefix that one replica has cached is fetched by another instead of being computed again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
from tests.in_process_fleet import GREEDY, VOCAB_SIZE, Fleet, running_fleet

from baton.core.ids import ReplicaId, new_epoch, new_request_id
from baton.core.messages import GenerateRequest, Receipt
from baton.core.replicas import Role
from baton.core.sampling import SamplingParams
from baton.decode_service.worker import DecodeWorker
from baton.engine.passes.echo import echo_output
from baton.kv_transfer.pulling.lending import Lender
from baton.router.cache.pulling import PullRates, RateMeter

PROMPT = tuple((5 * i) % 251 + 1 for i in range(42))
NUM_FULL = 40
"""Of its tokens, in full blocks of 4."""


@dataclass(frozen=True)
class Told:
    tokens: list[int]
    receipt: Receipt


async def ask_at(
    fleet: Fleet,
    where: str,
    prompt: Sequence[int] = PROMPT,
    sampling: SamplingParams = GREEDY,
    **options: Any,
) -> Told:
    """One request straight to a decode replica, as a gateway would send it."""
    worker = fleet.replicas[ReplicaId(where)].worker
    assert isinstance(worker, DecodeWorker)
    session = worker.open_session(new_epoch())
    request = GenerateRequest(
        request_id=new_request_id(),
        attempt=1,
        prompt=tuple(prompt),
        sampling=sampling,
        time_left_ms=30_000,
        **options,
    )
    worker.generate(session, request)
    tokens: list[int] = []
    try:
        while (frame := await session.next_frame()) is not None:
            for update in frame.updates:
                tokens += update.tokens
                if update.error is not None:
                    raise update.error
                if update.is_last:
                    assert update.receipt is not None
                    return Told(tokens, update.receipt)
    finally:
        worker.close_session(session)
    raise AssertionError("the session ended early")


def at(fleet: Fleet, name: str) -> Any:
    return fleet.replicas[ReplicaId(name)].info.endpoint


EXPECTED = echo_output(list(PROMPT), GREEDY.max_tokens, VOCAB_SIZE)


@asynccontextmanager
async def two_decode_replicas() -> AsyncIterator[Fleet]:
    async with running_fleet(prefill=0, decode=2) as fleet:
        yield fleet
        await fleet.assert_nothing_is_held()


async def test_a_prompt_cached_on_another_replica_is_not_computed_again() -> None:
    async with two_decode_replicas() as fleet:
        first = await ask_at(fleet, "decode-1")

        second = await ask_at(fleet, "decode-2", source=at(fleet, "decode-1"))

        assert first.tokens == second.tokens == EXPECTED
        assert first.receipt.computed_tokens == len(PROMPT) + len(EXPECTED) - 1
        receipt = second.receipt
        assert receipt.pulled_tokens == receipt.cached_tokens == NUM_FULL
        assert receipt.computed_tokens == len(PROMPT) - NUM_FULL + len(EXPECTED) - 1
        assert receipt.kv_bytes > 0


async def test_what_was_pulled_is_cached_here_from_then_on() -> None:
    async with two_decode_replicas() as fleet:
        await ask_at(fleet, "decode-1")
        await ask_at(fleet, "decode-2", source=at(fleet, "decode-1"))

        again = await ask_at(fleet, "decode-2", source=at(fleet, "decode-1"))

        assert again.tokens == EXPECTED
        assert again.receipt.cached_tokens == NUM_FULL
        assert (again.receipt.pulled_tokens, again.receipt.kv_bytes) == (0, 0)


async def test_only_what_is_missing_is_pulled() -> None:
    async with two_decode_replicas() as fleet:
        await ask_at(fleet, "decode-1")
        await ask_at(fleet, "decode-2", PROMPT[:21])

        told = await ask_at(fleet, "decode-2", source=at(fleet, "decode-1"))

        assert told.tokens == EXPECTED
        assert told.receipt.pulled_tokens == NUM_FULL - 20
        assert told.receipt.cached_tokens == NUM_FULL


async def test_a_peer_that_holds_nothing_is_asked_in_vain() -> None:
    async with two_decode_replicas() as fleet:
        told = await ask_at(fleet, "decode-2", source=at(fleet, "decode-1"))

        assert told.tokens == EXPECTED
        assert told.receipt.pulled_tokens == 0
        assert told.receipt.notes == ()


@pytest.mark.parametrize("num_tokens", [NUM_FULL + 1, NUM_FULL + 2])
async def test_who_moves_to_where_its_kv_is_asks_no_prefill_replica(num_tokens: int) -> None:
    """Its old replica is not even asked for what ends with a full block, and has no more."""
    async with running_fleet(prefill=1, decode=2) as fleet:
        prompt = PROMPT[:num_tokens]
        before = await ask_at(fleet, "decode-3", prompt)

        moved = await ask_at(
            fleet,
            "decode-3",
            prompt,
            is_moving=True,
            source=at(fleet, "decode-2"),
            prefill=(at(fleet, "prefill-1"),),
        )

        assert moved.tokens == before.tokens
        assert (moved.receipt.prefill_replica, moved.receipt.cached_tokens) == ("", NUM_FULL)
        assert moved.receipt.computed_tokens == num_tokens - NUM_FULL + len(moved.tokens) - 1
        assert moved.receipt.notes == (
            f"moved from decode-2 to where the KV of {NUM_FULL} tokens was",
        )
        await fleet.assert_nothing_is_held()


async def test_another_tenants_prefix_stays_where_it_is() -> None:
    async with two_decode_replicas() as fleet:
        await ask_at(fleet, "decode-1", salt=b"one")

        told = await ask_at(fleet, "decode-2", salt=b"other", source=at(fleet, "decode-1"))

        assert told.tokens == EXPECTED
        assert told.receipt.pulled_tokens == 0


@pytest.mark.parametrize("failure", ["gone", "another incarnation"])
async def test_a_peer_that_cannot_be_asked_costs_a_note(failure: str) -> None:
    async with two_decode_replicas() as fleet:
        await ask_at(fleet, "decode-1")
        source = at(fleet, "decode-1")
        if failure == "gone":
            await fleet.crash(ReplicaId("decode-1"))
        else:
            source = replace(source, epoch=new_epoch())

        told = await ask_at(fleet, "decode-2", source=source)

        assert told.tokens == EXPECTED
        assert told.receipt.computed_tokens == len(PROMPT) + len(EXPECTED) - 1
        [note] = told.receipt.notes
        assert note.startswith("nothing brought in from decode-1: ")


async def test_a_prefill_replica_pulls_before_it_computes() -> None:
    async with running_fleet(prefill=2, decode=2) as fleet:
        await ask_at(fleet, "decode-3", prefill=(at(fleet, "prefill-1"),))

        told = await ask_at(
            fleet,
            "decode-4",
            prefill=(at(fleet, "prefill-2"),),
            source=at(fleet, "prefill-1"),
        )

        assert told.tokens == EXPECTED
        assert told.receipt.prefill_replica == "prefill-2"
        assert told.receipt.cached_tokens == NUM_FULL
        assert told.receipt.computed_tokens == len(PROMPT) - NUM_FULL + len(EXPECTED) - 1
        await fleet.assert_nothing_is_held()


async def test_a_prefill_replica_pulls_from_the_decode_replica_it_computes_for() -> None:
    async with running_fleet(prefill=1, decode=1) as fleet:
        first = await ask_at(fleet, "decode-2")  # computed there, output and all
        longer = (*PROMPT, *first.tokens, 7, 8, 9)

        told = await ask_at(
            fleet,
            "decode-2",
            longer,
            prefill=(at(fleet, "prefill-1"),),
            source=at(fleet, "decode-2"),
        )

        assert told.tokens == echo_output(list(longer), GREEDY.max_tokens, VOCAB_SIZE)
        num_known = (len(longer) - 4) // 4 * 4
        assert told.receipt.cached_tokens == num_known
        await fleet.assert_nothing_is_held()


async def test_choices_of_one_prompt_pull_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with two_decode_replicas() as fleet:
        await ask_at(fleet, "decode-1")
        asking = (ask_at(fleet, "decode-2", source=at(fleet, "decode-1")) for _ in range(4))

        told = await asyncio.gather(*asking)

        assert all(one.tokens == EXPECTED for one in told)
        assert sorted(one.receipt.pulled_tokens for one in told) == [0, 0, 0, NUM_FULL]


async def test_a_pull_that_is_cancelled_holds_nothing_on_either_side(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, honest = asyncio.Event(), Lender.lend

    async def halting(self: Lender, *args: Any) -> Any:
        async for offered in honest(self, *args):
            asked.set()
            await asyncio.Event().wait()
            yield offered

    async with two_decode_replicas() as fleet:
        await ask_at(fleet, "decode-1")
        monkeypatch.setattr(Lender, "lend", halting)
        asking = asyncio.create_task(ask_at(fleet, "decode-2", source=at(fleet, "decode-1")))
        await asked.wait()

        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def test_the_router_names_who_has_the_prefix() -> None:
    async with running_fleet(prefill=0, decode=2) as fleet:
        await fleet.ask(PROMPT)
        [knows] = [
            replica_id
            for replica_id, engine in fleet.engines.items()
            if engine.stats.num_tokens_run
        ]
        index, epoch = fleet.dispatcher.fleet.index, fleet.replicas[knows].info.epoch
        size = fleet.engines[knows].pool.layout.block_size
        async with asyncio.timeout(60):
            while index.num_blocks(epoch) < NUM_FULL // size:
                await asyncio.sleep(0.005)
        slow_to_compute = RateMeter(PullRates(min_tokens=8, tokens_per_s=1.0))
        fleet.dispatcher.fleet.loads.meter = slow_to_compute
        fleet.replicas[knows].worker.begin_drain()  # so that the other is chosen
        async with asyncio.timeout(60):
            while not any(link.is_draining for link in fleet.dispatcher.fleet.connected):
                await asyncio.sleep(0.005)

        answer = await fleet.ask(PROMPT)

        assert answer.tokens == EXPECTED
        assert answer.receipt.decode_replica != knows
        assert answer.receipt.pulled_tokens == NUM_FULL
        assert f"{NUM_FULL} tokens cached on {knows}" in answer.receipt.placement
        await fleet.assert_nothing_is_held()


async def test_a_draining_prefill_replica_takes_no_more_and_empties() -> None:
    async with running_fleet(prefill=1, decode=1) as fleet:
        worker = fleet.replicas[ReplicaId("prefill-1")].worker
        await fleet.ask(PROMPT)

        await fleet.dispatcher.drain("prefill-1", is_forced=False)
        answer = await fleet.ask([9, *PROMPT])

        assert answer.receipt.prefill_replica == ""
        assert fleet.replicas[ReplicaId("prefill-1")].info.is_ready is False
        assert fleet.replicas[ReplicaId("prefill-1")].info.role is Role.PREFILL
        async with asyncio.timeout(60):
            await worker.drain()
        await fleet.assert_nothing_is_held()
