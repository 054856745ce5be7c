"""The sending side at work: an engine that computes, streams that read it layer by layer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace

import pytest
from tests.kv_transfer.replicas import (
    LAYOUT,
    TRANSFER,
    DecodeReplica,
    PrefillReplica,
    opening,
    settling,
)
from tests.kv_transfer.sending.prefilling import NUM_LAYERS, prefilling

from baton.core.errors import TransferAborted, TransferCut
from baton.core.ids import TransferId
from baton.core.kv_pool import BlockSource, Holder
from baton.core.owner_thread import Inline, OneThread
from baton.engine.engine_thread import EngineThread
from baton.engine.request.step_report import StepReport
from baton.kv_transfer.handoff.lease import Computation
from baton.kv_transfer.handoff.messages import Outcome
from baton.kv_transfer.handoff.transport import LentPiece
from baton.kv_transfer.sending import pieces, read_ahead
from baton.kv_transfer.sending.outbox import Outbox
from baton.kv_transfer.sending.pieces import Contents, Cut, read_together
from baton.kv_transfer.sending.read_ahead import MAX_AHEAD


def dwell(thread: EngineThread, until: threading.Event) -> None:
    """Between the same two layers, for as long as it takes."""
    while not until.wait(0.001):
        thread._run_express()


def assert_happens(event: threading.Event) -> None:
    assert event.wait(30)


async def test_a_layer_has_left_before_the_last_one_is_computed() -> None:
    async with prefilling() as p:
        arrived, seen = [threading.Event() for _ in range(NUM_LAYERS)], list[str]()

        def wait_for_the_layer_before(layer: int) -> None:
            seen.append(f"computed {layer}")
            if layer:
                dwell(p.thread, arrived[layer - 1])

        def on_piece(piece: LentPiece) -> None:
            if piece.first_block == 4:  # the last of its layer
                seen.append(f"arrived {piece.plane}")
                arrived[piece.plane].set()

        p.after_layer.append(wait_for_the_layer_before)
        await p.prefill(TRANSFER, range(22))
        async with asyncio.timeout(120):
            await p.receive(TRANSFER, on_piece)

        assert seen.index("arrived 0") < seen.index("computed 2") < seen.index("arrived 3")
        assert seen.index("arrived 2") < len(seen) - 1
        assert p.received[TRANSFER] == await p.computed(TRANSFER)
        await p.settle(TRANSFER, Outcome.SEALED)
        await p.assert_nothing_is_held()


async def test_what_arrives_is_what_is_computed_in_chunks_and_on_prefix_hits() -> None:
    """A pool that all the prompts together do not fit into, and beginnings that some share."""
    shared = list(range(30))
    prompts = {
        TransferId(f"kv-{n}"): [*shared[: 3 * n], *range(40 + n, 60 + 2 * n)] for n in range(9)
    }
    async with prefilling(num_blocks=30, max_batch_tokens=7) as p:

        async def hand_over(transfer_id: TransferId, prompt: list[int]) -> None:
            await p.prefill(transfer_id, prompt)
            await p.receive(transfer_id)
            computed = await p.computed(transfer_id)
            num_blocks = p.engine.pool.layout.num_blocks_for(len(prompt))
            assert len(computed) == num_blocks * NUM_LAYERS
            assert p.received[transfer_id] == computed
            assert await p.settle(transfer_id, Outcome.SEALED) is Outcome.SEALED

        async with asyncio.timeout(60):
            await asyncio.gather(*(hand_over(*pair) for pair in prompts.items()))

        await p.assert_nothing_is_held()


@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("num_steps", [1, 3, 5])
async def test_a_prompt_that_is_preempted_and_computed_again_arrives_whole_and_once(
    num_steps: int, prefix_caching: bool
) -> None:
    async with prefilling(max_batch_tokens=7, prefix_caching=prefix_caching) as p:

        def preempt(report: StepReport) -> None:
            if p.engine.stats.num_steps == num_steps:
                [request] = p.engine._request_by_id.values()
                p.engine._scheduler._preempt(request)

        p.on_step.append(preempt)
        request = await p.prefill(TRANSFER, range(40))
        async with asyncio.timeout(120):
            await p.receive(TRANSFER)

        assert request.num_preemptions == 1
        assert p.received[TRANSFER] == await p.computed(TRANSFER)
        assert len(p.received[TRANSFER]) == 10 * NUM_LAYERS
        await p.settle(TRANSFER, Outcome.SEALED)
        await p.assert_nothing_is_held()


async def test_an_outcome_that_is_told_in_mid_step_is_heard_after_it() -> None:
    """Else a transfer could be over before its first token is known."""
    async with prefilling() as p:
        told, order = threading.Event(), list[str]()

        def wait(layer: int) -> None:
            if layer == NUM_LAYERS - 1:
                dwell(p.thread, told)

        p.after_layer.append(wait)
        p.on_step.append(lambda report: order.append("step"))
        p.on_ended.append(lambda transfer_id: order.append("ended"))
        await p.prefill(TRANSFER, range(22))
        async with asyncio.timeout(120):
            await p.receive(TRANSFER)
            settling_ = asyncio.ensure_future(p.settle(TRANSFER, Outcome.SEALED))
            await asyncio.sleep(0)
            told.set()

            assert await settling_ is Outcome.SEALED
        assert order == ["step", "ended"]
        await p.assert_nothing_is_held()


async def test_a_transfer_aborted_between_steps_ends_its_stream_with_the_reason() -> None:
    async with prefilling(max_batch_tokens=4) as p:
        got_some = threading.Event()

        def wait(layer: int) -> None:
            if layer == NUM_LAYERS - 1:
                dwell(p.thread, got_some)

        p.after_layer.append(wait)
        await p.prefill(TRANSFER, range(40))
        receiving = asyncio.ensure_future(p.receive(TRANSFER, lambda piece: got_some.set()))

        def give_up() -> None:
            p.engine.abort(TRANSFER)
            p.sender.abort(TRANSFER, "the client went away")

        await p.thread.call(give_up)  # its first step waits for the first piece to arrive

        with pytest.raises(TransferAborted, match="the client went away"):
            async with asyncio.timeout(120):
                await receiving
        await p.assert_nothing_is_held()


@pytest.mark.parametrize("num_turns", range(0, 60, 4))
async def test_a_stream_closed_at_any_moment_of_the_computation_leaves_nothing_behind(
    num_turns: int,
) -> None:
    async with prefilling(max_batch_tokens=5) as p:
        await p.prefill(TRANSFER, range(40))
        receiving = asyncio.ensure_future(p.receive(TRANSFER))
        for _ in range(num_turns):
            await asyncio.sleep(0)

        receiving.cancel()
        await asyncio.wait({receiving})

        async with asyncio.timeout(120):
            while p.sender.computation(TRANSFER) is Computation.RUNNING:
                await asyncio.sleep(0.001)
            p.received.clear()
            await p.receive(TRANSFER)  # it may still be opened again
        assert p.received[TRANSFER] == await p.computed(TRANSFER)
        await p.settle(TRANSFER, Outcome.SEALED)
        await p.assert_nothing_is_held()


class Unreadable:
    def __init__(self, is_in_memory: bool) -> None:
        self.is_in_memory = is_in_memory
        self.threads: list[threading.Thread] = []

    def can_sum_up(self, unit_bytes: int) -> bool:
        return False

    def checksums(
        self, planes: range, start: int, stop: int, part: slice, unit_bytes: int
    ) -> bytes:
        raise ValueError("no device sums them up")

    def views(self, planes: range, start: int, stop: int) -> tuple[memoryview, ...]:
        self.threads.append(threading.current_thread())
        raise RuntimeError("no pinned memory is left")


def computed_replica(*transfers: TransferId) -> tuple[PrefillReplica, DecodeReplica]:
    prefill, decode = PrefillReplica(num_blocks=64), DecodeReplica()
    for transfer_id in transfers:
        prefill.grant(decode.receiver.epoch, transfer_id)
        prefill.compute(transfer_id)
        prefill.finish(transfer_id)
    return prefill, decode


async def test_a_receiver_that_takes_nothing_holds_up_no_other_and_is_not_read_far_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    others = [TransferId(f"kv-other-{n}") for n in range(8)]
    prefill, decode = computed_replica(TRANSFER, *others)
    hashed: list[TransferId] = []

    def note(wanted: Sequence[Cut]) -> list[Contents]:
        hashed.extend(cut.reading.transfer_id for cut in wanted)
        return read_together(wanted)

    monkeypatch.setattr(pieces, "read_together", note)
    owner = OneThread()
    outbox = Outbox(prefill.sender, owner, max_piece_bytes=1)  # a piece a block: 12 of them
    slow = outbox.pieces(opening(prefill, decode))
    held = await anext(slow)

    async def all_of(transfer_id: TransferId) -> int:
        request = replace(opening(prefill, decode), transfer_id=transfer_id)
        num_pieces = 0
        async with aclosing(outbox.pieces(request)) as pieces:
            async for piece in pieces:
                piece.give_back()
                num_pieces += 1
        return num_pieces

    async with asyncio.timeout(120):
        assert await asyncio.gather(*map(all_of, others)) == [12] * len(others)

    assert hashed.count(TRANSFER) <= MAX_AHEAD + 1
    held.give_back()
    await slow.aclose()
    await owner.call(lambda: prefill.sender.expire(float("inf")))
    async with asyncio.timeout(120):
        while prefill.sender.lease_ids:
            await asyncio.sleep(0.001)
    assert prefill.audit().violations == ()
    owner.stop()


@pytest.mark.parametrize(("max_blocks", "lengths"), [(2, [2] * 6), (4, [2, 2, 2, 3, 3])])
async def test_pieces_grow_with_the_stream_up_to_what_the_transport_allows(
    monkeypatch: pytest.MonkeyPatch, max_blocks: int, lengths: list[int]
) -> None:
    block_bytes = LAYOUT.layer_block_bytes
    monkeypatch.setattr(read_ahead, "BATCH_BYTES", 2 * block_bytes)
    prefill, decode = computed_replica(TRANSFER)
    owner = OneThread()
    outbox = Outbox(prefill.sender, owner, max_piece_bytes=max_blocks * block_bytes)
    found, lasts = list[int](), list[bool]()
    async with aclosing(outbox.pieces(opening(prefill, decode))) as pieces:
        async for piece in pieces:
            found.append(len(piece.blocks))
            lasts.append(piece.is_last)
            piece.give_back()

    assert found == lengths
    assert lasts == [False] * (len(lengths) - 1) + [True]
    owner.stop()


@pytest.mark.parametrize("num_taken", range(0, 13, 2))
async def test_a_stream_closed_at_any_point_gives_all_its_readings_back(num_taken: int) -> None:
    prefill, decode = computed_replica(TRANSFER)
    owner = OneThread()
    outbox = Outbox(prefill.sender, owner, max_piece_bytes=1)
    lent: list[LentPiece] = []
    async with aclosing(outbox.pieces(opening(prefill, decode))) as pieces:
        for _ in range(num_taken):
            lent.append(await anext(pieces))

    await owner.call(lambda: prefill.sender.settle(settling(prefill, decode, Outcome.ABORTED)))
    assert not lent or prefill.audit().quarantined
    for piece in lent:
        piece.give_back()
        piece.give_back()

    async with asyncio.timeout(120):
        while prefill.sender.lease_ids:
            await asyncio.sleep(0.001)
    report = prefill.audit()
    assert report.violations == ()
    assert report.leased == report.quarantined == 0
    owner.stop()


@pytest.mark.parametrize("is_in_memory", [True, False])
async def test_blocks_that_cannot_be_read_cut_the_stream_and_leave_nothing_behind(
    is_in_memory: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    prefill, decode = computed_replica(TRANSFER)
    source, unreadable = prefill.pool.source, Unreadable(is_in_memory)

    def failing(holder: Holder, start: int, stop: int, planes: range) -> BlockSource:
        if planes.start:
            return unreadable
        return source(holder, start, stop, planes)

    monkeypatch.setattr(prefill.pool, "source", failing)
    owner = OneThread()
    outbox = Outbox(prefill.sender, owner, max_piece_bytes=2 * LAYOUT.layer_block_bytes)
    num_pieces = 0
    with pytest.raises(TransferCut, match=r"kv-1 cannot be read: .*no pinned memory is left"):
        async with aclosing(outbox.pieces(opening(prefill, decode))) as pieces:
            async for piece in pieces:
                piece.give_back()
                num_pieces += 1

    assert num_pieces == 3
    is_loops = threading.current_thread() in unreadable.threads
    assert is_loops == is_in_memory, "nobody waits for a device on the event loop"
    assert "the KV of kv-1 cannot be read" in caplog.text
    await owner.call(lambda: prefill.sender.abort(TRANSFER, "cancelled"))
    async with asyncio.timeout(120):
        while prefill.sender.lease_ids:
            await asyncio.sleep(0.001)
    assert prefill.audit().quarantined == 0
    owner.stop()


def failing_from(plane: int, prefill: PrefillReplica) -> Callable[..., BlockSource]:
    source = prefill.pool.source

    def failing(holder: Holder, start: int, stop: int, planes: range) -> BlockSource:
        if planes.start >= plane:
            raise RuntimeError("no pinned memory is left")
        return source(holder, start, stop, planes)

    return failing


def test_a_reading_that_cannot_be_begun_ends_those_begun_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prefill, decode = computed_replica(TRANSFER)
    stream = prefill.sender.open(opening(prefill, decode))
    monkeypatch.setattr(prefill.pool, "source", failing_from(1, prefill))

    with pytest.raises(RuntimeError, match="no pinned memory"):
        prefill.sender.begin_read(stream)

    prefill.sender.abort(TRANSFER, "cancelled")
    assert not prefill.sender.lease_ids
    assert prefill.audit().quarantined == 0


async def test_who_waits_for_what_cannot_be_read_hears_of_it_and_the_engine_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prefill, decode = PrefillReplica(num_blocks=64), DecodeReplica()
    prefill.grant(decode.receiver.epoch, TRANSFER)
    owner = OneThread()
    outbox = Outbox(prefill.sender, owner)
    async with aclosing(outbox.pieces(opening(prefill, decode))) as pieces:
        waiting = asyncio.ensure_future(anext(pieces, None))
        async with asyncio.timeout(120):
            while not await owner.call(lambda: dict(prefill.sender._waiting)):
                await asyncio.sleep(0.001)
        monkeypatch.setattr(prefill.pool, "source", failing_from(0, prefill))
        await owner.call(lambda: prefill.compute(TRANSFER))  # as between two layers of a step

        with pytest.raises(TransferCut, match=r"kv-1 cannot be read: .*no pinned memory is left"):
            async with asyncio.timeout(120):
                await waiting
    monkeypatch.undo()

    async with aclosing(outbox.pieces(opening(prefill, decode))) as pieces:  # it is not over
        assert await anext(pieces)
    owner.stop()


async def test_a_reopened_stream_goes_on_where_it_is_told_to() -> None:
    prefill, decode = computed_replica(TRANSFER)
    owner = OneThread()
    outbox = Outbox(prefill.sender, owner)

    async with aclosing(outbox.pieces(replace(opening(prefill, decode), first_block=4))) as pieces:
        spans = [(piece.plane, piece.first_block, len(piece.views)) async for piece in pieces]

    assert spans == [(layer, 4, 2) for layer in range(LAYOUT.num_layers)]
    owner.stop()


@pytest.mark.parametrize("num_turns", range(1, 9))
async def test_a_stream_that_is_cancelled_at_any_moment_leaves_no_read_under_way(
    num_turns: int,
) -> None:
    prefill, decode = PrefillReplica(), DecodeReplica()
    owner = Inline()
    outbox = Outbox(prefill.sender, owner)
    prefill.grant(decode.receiver.epoch)
    prefill.compute()

    async with aclosing(outbox.pieces(opening(prefill, decode))) as pieces:
        first = asyncio.ensure_future(anext(pieces))
        for _ in range(num_turns):  # of the event loop
            await asyncio.sleep(0)
        first.cancel()
        [piece] = await asyncio.gather(first, return_exceptions=True)
        if isinstance(piece, LentPiece):
            piece.give_back()
    await owner.call(lambda: prefill.sender.abort(TRANSFER, "cancelled"))

    async with asyncio.timeout(60):
        while prefill.sender.lease_ids:  # a thread may be at it all the same
            await asyncio.sleep(0.001)
