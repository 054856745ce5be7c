"""The sending side at work: an engine that computes, streams that read it layer by layer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest
from tests.kv_transfer.replicas import (
    LAYOUT,
    TRANSFER,
    DecodeReplica,
    PrefillReplica,
    opening,
    settling,
)

from baton.core.errors import TransferAborted, TransferCut
from baton.core.ids import Epoch, TransferId, new_epoch
from baton.core.kv_pool import BlockSource, Holder
from baton.core.messages import SamplingParams
from baton.core.owner_thread import Inline, OneThread
from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig
from baton.engine.engine import Engine
from baton.engine.engine_thread import EngineThread
from baton.engine.passes.echo import EchoRunner, echo_info
from baton.engine.request.request import Request
from baton.engine.request.step_report import StepReport
from baton.engine.schedule.scheduler import ScheduledChunk
from baton.kv_transfer.handoff.auditor import audit
from baton.kv_transfer.handoff.lease import Computation
from baton.kv_transfer.handoff.messages import OpenTransfer, Outcome, SettleTransfer
from baton.kv_transfer.handoff.transport import LentPiece
from baton.kv_transfer.sending import read_ahead
from baton.kv_transfer.sending.outbox import Outbox
from baton.kv_transfer.sending.pieces import Contents, Cut, read
from baton.kv_transfer.sending.read_ahead import MAX_AHEAD
from baton.kv_transfer.sending.sender import Sender

NUM_LAYERS = 4
RECEIVER = Epoch("receiver")

Slot = tuple[int, int]
"""Layer, block."""


@dataclass
class Prefilling:
    """An engine that publishes as it computes, and what comes out of it."""

    engine: Engine
    thread: EngineThread
    sender: Sender
    outbox: Outbox
    on_step: list[Callable[[StepReport], None]]
    on_ended: list[Callable[[TransferId], None]]
    received: dict[TransferId, dict[Slot, bytes]] = field(default_factory=dict)

    async def prefill(self, transfer_id: TransferId, prompt: Sequence[int]) -> Request:
        params = SamplingParams(temperature=0.0, max_tokens=8)
        request = Request(transfer_id, prompt, sampling=params, max_new_tokens=1)

        def begin() -> None:
            self.engine.add(request)
            self.sender.offer(
                transfer_id,
                RECEIVER,
                source=request.holder,
                num_tokens=len(prompt),
                time_left_s=60.0,
                now=0.0,
            )

        await self.thread.call(begin)
        return request

    def opening(self, transfer_id: TransferId) -> OpenTransfer:
        return OpenTransfer(
            transfer_id=transfer_id,
            sender_epoch=self.sender.epoch,
            receiver_epoch=RECEIVER,
            layout=self.engine.pool.layout,
            first_block=0,
        )

    async def receive(
        self, transfer_id: TransferId, on_piece: Callable[[LentPiece], None] = lambda piece: None
    ) -> None:
        """Take every piece, as a D would."""
        received = self.received.setdefault(transfer_id, {})
        async with aclosing(self.outbox.pieces(self.opening(transfer_id))) as pieces:
            async for piece in pieces:
                for block, view in enumerate(piece.views, piece.first_block):
                    assert (piece.plane, block) not in received
                    received[piece.plane, block] = bytes(view)
                piece.give_back()
                on_piece(piece)

    async def settle(self, transfer_id: TransferId, outcome: Outcome | None) -> Outcome:
        return await self.outbox.settle(
            SettleTransfer(
                transfer_id=transfer_id,
                sender_epoch=self.sender.epoch,
                receiver_epoch=RECEIVER,
                outcome=outcome,
            )
        )

    async def computed(self, transfer_id: TransferId) -> dict[Slot, bytes]:
        """What P's pool holds for the transfer, before it is settled."""

        def look() -> dict[Slot, bytes]:
            offer = self.sender._offers[transfer_id]
            pool, num_blocks = self.engine.pool, len(self.engine.pool.table(offer.lease))
            return {
                (layer, block): bytes(pool.view(offer.lease, block, layer))
                for layer in range(NUM_LAYERS)
                for block in range(num_blocks)
            }

        return await self.thread.call(look)

    async def assert_nothing_is_held(self) -> None:
        async with asyncio.timeout(10):
            while self.sender.lease_ids:
                await asyncio.sleep(0.001)
        census = await self.thread.call(self.engine.pool.census)
        report = audit(census, frozenset(), frozenset())
        assert report.violations == ()
        assert report.live == report.leased == report.quarantined == 0


@asynccontextmanager
async def prefilling(
    *, num_blocks: int = 64, max_batch_tokens: int = 64, prefix_caching: bool = True
) -> AsyncIterator[Prefilling]:
    info = echo_info(num_layers=NUM_LAYERS)
    config = EngineConfig(
        cache=CacheConfig(block_size=4, prefix_caching=prefix_caching),
        scheduler=SchedulerConfig(max_batch_tokens=max_batch_tokens),
    )
    engine = Engine(EchoRunner(info, num_blocks=num_blocks, block_size=4), config)
    ended: list[Callable[[TransferId], None]] = []

    def on_ended(transfer_id: TransferId) -> None:
        for listener in ended:
            listener(transfer_id)

    sender = Sender(engine.pool, new_epoch(), on_ended=on_ended)

    def on_layer(layer: int, chunks: Sequence[ScheduledChunk]) -> None:
        for chunk in chunks:
            num_computed = chunk.request.num_computed + chunk.num_tokens
            sender.publish(TransferId(chunk.request.request_id), num_computed, layer)

    def finish(report: StepReport) -> None:
        for output in report.outputs:
            sender.finish(TransferId(output.request.request_id))

    listeners: list[Callable[[StepReport], None]] = [finish]

    def on_step(report: StepReport) -> None:
        for listener in listeners:
            listener(report)

    engine.on_layer = on_layer
    thread = EngineThread(engine, on_step)
    size = engine.pool.layout.layer_block_bytes
    outbox = Outbox(sender, thread, max_piece_bytes=2 * size)
    thread.start()
    try:
        yield Prefilling(engine, thread, sender, outbox, listeners, ended)
    finally:
        await asyncio.to_thread(thread.stop, 30)


def then(engine: Engine, function: Callable[[int], None]) -> None:
    """Let `function` run in the middle of each pass, after what is published there."""
    publish = engine.on_layer

    def on_layer(layer: int, chunks: Sequence[ScheduledChunk]) -> None:
        publish(layer, chunks)
        function(layer)

    engine.on_layer = on_layer


def dwell(engine: Engine, until: threading.Event) -> None:
    """Between the same two layers, for as long as it takes."""
    while not until.wait(0.001):
        engine.between_layers()


def assert_happens(event: threading.Event) -> None:
    assert event.wait(30)


async def test_a_layer_has_left_before_the_last_one_is_computed() -> None:
    async with prefilling() as p:
        arrived, seen = [threading.Event() for _ in range(NUM_LAYERS)], list[str]()

        def wait_for_the_layer_before(layer: int) -> None:
            seen.append(f"computed {layer}")
            if layer:
                dwell(p.engine, arrived[layer - 1])

        def on_piece(piece: LentPiece) -> None:
            if piece.first_block == 4:  # the last of its layer
                seen.append(f"arrived {piece.plane}")
                arrived[piece.plane].set()

        then(p.engine, wait_for_the_layer_before)
        await p.prefill(TRANSFER, range(22))
        async with asyncio.timeout(30):
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
        async with asyncio.timeout(30):
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
                dwell(p.engine, told)

        then(p.engine, wait)
        p.on_step.append(lambda report: order.append("step"))
        p.on_ended.append(lambda transfer_id: order.append("ended"))
        await p.prefill(TRANSFER, range(22))
        async with asyncio.timeout(30):
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
        then(p.engine, lambda layer: dwell(p.engine, got_some) if layer == NUM_LAYERS - 1 else None)
        await p.prefill(TRANSFER, range(40))
        receiving = asyncio.ensure_future(p.receive(TRANSFER, lambda piece: got_some.set()))

        def give_up() -> None:
            p.engine.abort(TRANSFER)
            p.sender.abort(TRANSFER, "the client went away")

        await p.thread.call(give_up)  # its first step waits for the first piece to arrive

        with pytest.raises(TransferAborted, match="the client went away"):
            async with asyncio.timeout(30):
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

        async with asyncio.timeout(30):
            while p.sender.computation(TRANSFER) is Computation.RUNNING:
                await asyncio.sleep(0.001)
            p.received.clear()
            await p.receive(TRANSFER)  # it may still be opened again
        assert p.received[TRANSFER] == await p.computed(TRANSFER)
        await p.settle(TRANSFER, Outcome.SEALED)
        await p.assert_nothing_is_held()


class Unreadable:
    def views(self, start: int, stop: int) -> tuple[memoryview, ...]:
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

    def note(cut: Cut) -> Contents:
        hashed.append(cut.reading.transfer_id)
        return read(cut)

    monkeypatch.setattr(read_ahead, "read", note)
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

    async with asyncio.timeout(30):
        assert await asyncio.gather(*map(all_of, others)) == [12] * len(others)

    assert hashed.count(TRANSFER) <= MAX_AHEAD + 1
    held.give_back()
    await slow.aclose()
    prefill.sender.expire(float("inf"))
    async with asyncio.timeout(30):
        while prefill.sender.lease_ids:
            await asyncio.sleep(0.001)
    assert prefill.audit().violations == ()
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

    async with asyncio.timeout(30):
        while prefill.sender.lease_ids:
            await asyncio.sleep(0.001)
    report = prefill.audit()
    assert report.violations == ()
    assert report.leased == report.quarantined == 0
    owner.stop()


async def test_blocks_that_cannot_be_read_cut_the_stream_and_leave_nothing_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    prefill, decode = computed_replica(TRANSFER)
    source = prefill.pool.source

    def failing(holder: Holder, start: int, stop: int, plane: int) -> BlockSource:
        if plane:
            return Unreadable()
        return source(holder, start, stop, plane)

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
    assert "the KV of kv-1 cannot be read" in caplog.text
    await owner.call(lambda: prefill.sender.abort(TRANSFER, "cancelled"))
    async with asyncio.timeout(30):
        while prefill.sender.lease_ids:
            await asyncio.sleep(0.001)
    assert prefill.audit().quarantined == 0
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
    outbox = Outbox(prefill.sender, Inline())
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
    prefill.sender.abort(TRANSFER, "cancelled")

    async with asyncio.timeout(10):
        while prefill.sender.lease_ids:  # a thread may be at it all the same
            await asyncio.sleep(0.001)
