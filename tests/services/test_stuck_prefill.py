"""Prefill replicas that answer, and get nowhere: gray failure."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack, aclosing, contextmanager
from functools import partial
from itertools import count
from typing import Any

import pytest
from tests.gateway.fleet.scripted_replica import until
from tests.in_process_fleet import (
    GREEDY,
    VOCAB_SIZE,
    Fleet,
    echo_engine,
    running_fleet,
    until_in_engine,
)
from tests.services.test_pulling import ask_at, at

from baton.core.chaos import Chaos, ChaosRule, Fault
from baton.core.ids import Epoch, ReplicaId, RequestId, TransferId
from baton.core.messages import PrefillDone, PrefillRequest
from baton.decode_service import pulling
from baton.engine.passes.echo import echo_output
from baton.kv_transfer.receiving import source_patience, source_watch
from baton.kv_transfer.receiving.source_patience import SourcePatience
from baton.kv_transfer.sending import stream
from baton.prefill_service.worker import PrefillWorker

PROMPT = list(range(3, 83))


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same rules in a hundredth of the time."""
    monkeypatch.setattr(source_watch, "LOOK_S", 0.01)
    monkeypatch.setattr(source_patience, "LEAST_S", 0.1)
    monkeypatch.setattr(source_patience, "MOST_S", 0.1)
    for name in ("AVOIDED_S", "MAX_AVOIDED_S"):
        monkeypatch.setattr(source_patience, name, 100.0)  # longer than a test takes


SILENCE_S = 0.1


def lose_patience_after_a_fault(
    monkeypatch: pytest.MonkeyPatch, chaos: Chaos, source: Epoch
) -> None:
    """From the first fault on, `source` may be silent for `SILENCE_S`; until then, and all others,
    for longer than a test takes, however busy the machine."""

    def silence_s(patience: SourcePatience, epoch: Epoch, now: float) -> float:
        return SILENCE_S if epoch == source and chaos.injected else 100.0

    monkeypatch.setattr(SourcePatience, "silence_s", silence_s)


@contextmanager
def stuck_in_a_pass(fleet: Fleet, replica_id: str) -> Iterator[None]:
    """Its engine's thread hangs as by a kernel that never ends; its event loop answers."""
    runner, may_proceed = fleet.engines[ReplicaId(replica_id)].runner, threading.Event()
    forward = runner.forward

    def hang(*args: Any, **options: Any) -> Any:
        may_proceed.wait(100)
        return forward(*args, **options)

    runner.forward = hang  # type: ignore[method-assign]
    try:
        yield
    finally:
        runner.forward = forward  # type: ignore[method-assign]
        may_proceed.set()


def let_layers_leave_together(fleet: Fleet) -> None:
    """So that a piece is of all planes, whenever it is opened."""
    for replica in fleet.replicas.values():
        if isinstance(replica.worker, PrefillWorker):
            replica.worker.publisher.layer_groups.min_bytes = 1 << 30


def silence_the_third_piece(fleet: Fleet, receiver: str) -> Chaos:
    """From there on nothing comes to it any more by the same way."""
    chaos = fleet.replicas[ReplicaId(receiver)].chaos
    assert chaos is not None
    silent = ChaosRule(
        at="transfer.piece", fault=Fault.PARTITION, rate=0.2, delay_s=90.0, max_times=1
    )
    draws = ((seed, Chaos((silent,), seed=seed, name=chaos.name)) for seed in count())
    seeds = (seed for seed, one in draws if [bool(one.draw(silent.at)) for _ in range(3)][2])
    chaos.set((silent,), next(seeds))
    return chaos


async def test_what_a_stuck_prefill_replica_was_to_compute_is_computed_by_another() -> None:
    async with running_fleet(prefill=2) as fleet:
        with stuck_in_a_pass(fleet, "prefill-1"), stuck_in_a_pass(fleet, "prefill-2"):
            first = await fleet.ask(PROMPT)
            later = await fleet.ask(PROMPT[1:])

        assert first.tokens == echo_output(PROMPT, 12, VOCAB_SIZE)
        assert len([note for note in first.receipt.notes if "got nowhere for 0.1 s" in note]) == 2
        assert len([note for note in later.receipt.notes if "was not asked: got" in note]) == 2
        await fleet.assert_nothing_is_held()


async def test_one_prompt_asks_a_replica_again_and_once_it_is_answered_all_do(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="baton.decode_service")
    for name in ("AVOIDED_S", "MAX_AVOIDED_S"):
        monkeypatch.setattr(source_patience, name, 0.1)
    async with running_fleet() as fleet:
        engine = fleet.engines[ReplicaId("prefill-1")]
        with stuck_in_a_pass(fleet, "prefill-1"):
            first = asyncio.create_task(fleet.ask(PROMPT))
            await until_in_engine(engine, 1)
            second = await fleet.ask([3, *PROMPT])  # never taken in: its engine hangs already
            for answer in (await first, second):
                assert any("got nowhere" in note for note in answer.receipt.notes)
        patience = fleet.replicas[ReplicaId("decode-2")].worker.core.kv.patience
        stuck, now = fleet.replicas[ReplicaId("prefill-1")].info.epoch, engine.clock
        await until(lambda: not patience.why_avoided(stuck, now()))
        await fleet.assert_nothing_is_held()  # the requests that it was to compute have left it
        monkeypatch.setattr(source_patience, "LEAST_S", 100.0)

        with stuck_in_a_pass(fleet, "prefill-1"):
            asking = asyncio.create_task(fleet.ask([9, *PROMPT]))
            await until_in_engine(engine, 1)
            meanwhile = await fleet.ask([4, *PROMPT])
        asked = await asking
        after = await asyncio.gather(*(fleet.ask([token, *PROMPT]) for token in range(5, 8)))

        assert not meanwhile.receipt.prefill_replica
        assert any("was not asked: got nowhere" in note for note in meanwhile.receipt.notes)
        assert {answer.receipt.prefill_replica for answer in (asked, *after)} == {"prefill-1"}
        logged = [one for one in caplog.records if one.name.startswith("baton.decode_service")]
        failed, works = [one.getMessage() for one in logged]  # not once a request
        assert "got nowhere" in failed and works == "prefill-1 computes prompts again"
        await fleet.assert_nothing_is_held()


async def test_kv_that_stops_to_come_costs_the_silence_and_no_second_first_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running_fleet(changes={"chaos": {"enabled": True}}) as fleet:
        chaos = fleet.replicas[ReplicaId("decode-2")].chaos
        assert chaos is not None
        lose_patience_after_a_fault(
            monkeypatch, chaos, fleet.replicas[ReplicaId("prefill-1")].info.epoch
        )
        parted = ChaosRule(at="transfer.piece", fault=Fault.PARTITION, rate=1.0, delay_s=50.0)
        chaos.set((parted,), 0)

        answer = await fleet.ask(PROMPT)

        chaos.set((), 0)
        assert answer.tokens == echo_output(PROMPT, 12, VOCAB_SIZE)
        assert any("prefill-1 got nowhere" in note for note in answer.receipt.notes)
        assert answer.receipt.prefill_replica == "prefill-1"  # whose first token it is
        await fleet.assert_nothing_is_held()


async def test_kv_that_is_late_is_computed_here_once_that_takes_no_longer_than_was_waited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(source_patience, "MOST_S", 100.0)  # longer than a test may take
    monkeypatch.setattr(source_patience, "LATE_PART", 0.001)
    async with running_fleet(changes={"chaos": {"enabled": True}}) as fleet:
        chaos = fleet.replicas[ReplicaId("decode-2")].chaos
        assert chaos is not None
        parted = ChaosRule(at="transfer.piece", fault=Fault.PARTITION, rate=1.0, delay_s=90.0)
        chaos.set((parted,), 0)

        answers = [await fleet.ask([first, *PROMPT]) for first in (8, 9, 10)]

        chaos.set((), 0)
        for first, answer in zip((8, 9, 10), answers, strict=True):
            assert answer.tokens == echo_output([first, *PROMPT], 12, VOCAB_SIZE)
        for answer in answers[:2]:
            assert any("what is missing is computed in" in note for note in answer.receipt.notes)
            assert answer.receipt.prefill_replica == "prefill-1"  # whose first token it is
        assert any("was not asked: got nowhere" in note for note in answers[2].receipt.notes)
        await fleet.assert_nothing_is_held()


@pytest.mark.parametrize(
    "second",
    ["nobody", "the named source", "a named source that has died", "another prefill replica"],
)
async def test_of_kv_that_stops_to_come_what_has_come_is_kept_and_the_rest_alone_is_got(
    monkeypatch: pytest.MonkeyPatch, second: str
) -> None:
    monkeypatch.setattr(stream, "MAX_SPAN_BLOCKS", 4)  # five pieces or more
    monkeypatch.setattr(pulling, "MIN_ASKED_TOKENS", 4)
    monkeypatch.setattr(source_patience, "LATE_PART", 1.0)
    chaotic = {"chaos": {"enabled": True}}
    async with running_fleet(prefill=2, decode=2, changes=chaotic) as fleet:
        let_layers_leave_together(fleet)
        source, *peers = (at(fleet, name) for name in ("decode-3", "prefill-1", "prefill-2"))
        await ask_at(fleet, "decode-3", PROMPT, prefill=peers[1:])
        if second == "a named source that has died":
            await fleet.crash(ReplicaId("decode-3"))
        chaos = silence_the_third_piece(fleet, "decode-4")
        lose_patience_after_a_fault(monkeypatch, chaos, peers[0].epoch)

        answer = await ask_at(
            fleet,
            "decode-4",
            PROMPT,
            prefill=peers if second == "another prefill replica" else peers[:1],
            source=source if "source" in second else None,
        )

        chaos.set((), 0)
        assert answer.tokens == echo_output(PROMPT, 12, VOCAB_SIZE)
        receipt = answer.receipt
        [note] = [note for note in receipt.notes if note.startswith("kept the KV of")]
        num_kept = int(note.split()[4])
        assert 0 < num_kept < len(PROMPT)
        num_missing, num_told = len(PROMPT) - num_kept, len(answer.tokens)
        is_found = second in ("the named source", "another prefill replica")
        assert receipt.pulled_tokens == (num_missing if is_found else 0)
        # Of the named source the prefill replica, too, had all full blocks but the last.
        num_there = 4 if second == "the named source" else len(PROMPT)
        num_here = 0 if is_found else num_missing
        assert (receipt.transfer_ms >= 1000 * SILENCE_S) == is_found  # the silence is part of it
        assert receipt.computed_tokens == num_there + num_here + num_told - 1
        metrics = fleet.replicas[ReplicaId("decode-4")].worker.metrics()
        assert metrics["kv_tokens_kept_total"] == num_kept
        await fleet.assert_nothing_is_held()


async def test_a_request_cancelled_while_kv_is_late_holds_nothing_and_what_came_is_cached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream, "MAX_SPAN_BLOCKS", 4)
    monkeypatch.setattr(source_patience, "MOST_S", 100.0)
    async with running_fleet(changes={"chaos": {"enabled": True}}) as fleet:
        let_layers_leave_together(fleet)
        chaos = silence_the_third_piece(fleet, "decode-2")
        core = fleet.replicas[ReplicaId("decode-2")].worker.core
        is_told = asyncio.Event()

        async def give_up(num_tokens: int) -> None:
            is_told.set()
            await asyncio.Event().wait()

        asking = asyncio.create_task(fleet.ask(PROMPT, on_token=give_up))
        await is_told.wait()
        async with asyncio.timeout(60):  # the first two, of four blocks each
            while core.kv.receiver.counters.num_bytes < 8 * core.kv.pool.layout.block_bytes:
                await asyncio.sleep(0.002)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

        await fleet.assert_nothing_is_held()
        chaos.set((), 0)
        assert core.kv.pool.num_cached(PROMPT, b"") == 32
        monkeypatch.setattr(source_patience, "MOST_S", 0.1)  # the way is silent all the same
        assert (await fleet.ask(PROMPT)).tokens == echo_output(PROMPT, 12, VOCAB_SIZE)
        await fleet.assert_nothing_is_held()


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("stuck", ["its engine", "the way from it"])
async def test_a_pull_from_a_replica_that_gets_nowhere_costs_the_silence_and_a_note(
    monkeypatch: pytest.MonkeyPatch, stuck: str, is_late: bool
) -> None:
    """Or less than the silence, if what is missing is computed sooner."""
    monkeypatch.setattr(source_patience, "LATE_PART", 0.001 if is_late else 1.0)
    if is_late:
        monkeypatch.setattr(source_patience, "MOST_S", 100.0)  # longer than a test may take
    async with (
        running_fleet(prefill=0, decode=2, changes={"chaos": {"enabled": True}}) as fleet,
        AsyncExitStack() as held,
    ):
        source = fleet.replicas[ReplicaId("decode-1")].info.endpoint
        await ask_at(fleet, "decode-1", PROMPT)
        await ask_at(fleet, "decode-2", PROMPT[40:])  # it knows how long prompts take
        if stuck == "its engine":
            held.enter_context(stuck_in_a_pass(fleet, "decode-1"))
            other = asyncio.create_task(ask_at(fleet, "decode-1", [9, *PROMPT]))
            async with asyncio.timeout(60):
                while not fleet.engines[ReplicaId("decode-1")].request_ids:
                    await asyncio.sleep(0.002)
        else:
            chaos = fleet.replicas[ReplicaId("decode-2")].chaos
            assert chaos is not None
            chaos.set(
                (ChaosRule(at="transfer.piece", fault=Fault.PARTITION, rate=1.0, delay_s=50.0),), 0
            )
            held.callback(chaos.set, (), 0)

        answer = await ask_at(fleet, "decode-2", PROMPT, source=source)
        later = await ask_at(fleet, "decode-2", [8, *PROMPT], source=source)

        assert answer.tokens == echo_output(PROMPT, GREEDY.max_tokens, VOCAB_SIZE)
        why = "what is missing is computed in" if is_late else "decode-1 got nowhere for 0.1 s"
        assert any(why in note for note in answer.receipt.notes)
        if not is_late:  # perhaps that one alone was late
            assert not later.receipt.notes  # it is left alone for a while
        await held.aclose()
        if stuck == "its engine":
            await other
        await fleet.assert_nothing_is_held()


@pytest.mark.parametrize("wants_progress", [True, False])
async def test_who_waits_for_a_first_token_hears_that_the_engine_advances(
    monkeypatch: pytest.MonkeyPatch, wants_progress: bool
) -> None:
    monkeypatch.setattr("baton.prefill_service.kv_publisher.PROGRESS_S", 0.0)
    async with running_fleet(make_engine=partial(echo_engine, prefill_chunk=4)) as fleet:
        worker = fleet.replicas[ReplicaId("prefill-1")].worker
        assert isinstance(worker, PrefillWorker)
        receiver = fleet.replicas[ReplicaId("decode-2")].info
        heard: dict[str, list[str]] = {"first": [], "second": []}

        async def ask(name: str) -> None:
            request = PrefillRequest(
                request_id=RequestId(name),
                transfer_id=TransferId(name),
                receiver_epoch=receiver.epoch,
                layout=receiver.layout,
                prompt=tuple(PROMPT),
                salt=name.encode(),
                wants_progress=wants_progress,
                time_left_ms=30_000,
            )
            async with aclosing(worker.prefill(request)) as events:
                async for event in events:
                    heard[name].append(type(event).__name__)
                    if isinstance(event, PrefillDone):
                        return

        with fleet.standing_still(ReplicaId("prefill-1")) as engine:
            asking = [asyncio.create_task(ask(name)) for name in heard]
            await until_in_engine(engine, 2)
        await asyncio.gather(*asking)

        assert heard["second"][-1] == "PrefillDone"
        assert (heard["second"].count("PrefillProgress") > 10) == wants_progress
        await fleet.assert_nothing_is_held()


@pytest.mark.parametrize("joins_progress", [True, False])
async def test_a_grant_that_comes_at_once_stands_for_the_progress_before_it(
    monkeypatch: pytest.MonkeyPatch, joins_progress: bool
) -> None:
    async with running_fleet() as fleet:
        worker = fleet.replicas[ReplicaId("prefill-1")].worker
        assert isinstance(worker, PrefillWorker)
        receiver = fleet.replicas[ReplicaId("decode-2")].info

        async def first_event(name: str) -> str:
            request = PrefillRequest(
                request_id=RequestId(name),
                transfer_id=TransferId(name),
                receiver_epoch=receiver.epoch,
                layout=receiver.layout,
                prompt=tuple(PROMPT),
                wants_progress=True,
                joins_progress=joins_progress,
                time_left_ms=30_000,
            )
            async with aclosing(worker.prefill(request)) as events:
                return type(await anext(events)).__name__

        with fleet.standing_still(ReplicaId("prefill-1")):
            assert await first_event("waits") == "PrefillProgress"
        monkeypatch.setattr("baton.prefill_service.worker.ENTER_S", 20.0)
        expected = "PrefillGranted" if joins_progress else "PrefillProgress"
        assert await first_event("is taken") == expected
        await fleet.assert_nothing_is_held()
