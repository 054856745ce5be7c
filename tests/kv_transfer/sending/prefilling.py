"""A prefill replica that computes while its KV leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

from baton.core.ids import Epoch, TransferId, new_epoch
from baton.core.sampling import SamplingParams
from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig
from baton.engine.engine import Engine
from baton.engine.engine_thread import EngineThread
from baton.engine.passes.echo import EchoRunner, echo_info
from baton.engine.request.request import Request
from baton.engine.request.step_report import StepReport
from baton.engine.schedule.drafted_chunks import ScheduledChunk
from baton.engine.step_hooks import StepHooks
from baton.kv_transfer.handoff.auditor import audit
from baton.kv_transfer.handoff.messages import OpenTransfer, Outcome, SettleTransfer
from baton.kv_transfer.handoff.transport import LentPiece
from baton.kv_transfer.sending.outbox import Outbox
from baton.kv_transfer.sending.sender import Sender

Slot = tuple[int, int]
"""Layer, block."""
NUM_LAYERS = 4


RECEIVER = Epoch("receiver")


@dataclass
class Prefilling:
    """An engine that publishes as it computes, and what comes out of it."""

    engine: Engine
    thread: EngineThread
    sender: Sender
    outbox: Outbox
    on_step: list[Callable[[StepReport], None]]
    after_layer: list[Callable[[int], None]]
    """Called in the middle of each pass, after what is published there."""
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
        async with asyncio.timeout(60):
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
    after_layer: list[Callable[[int], None]] = []

    def on_ended(transfer_id: TransferId) -> None:
        for listener in ended:
            listener(transfer_id)

    sender = Sender(engine.pool, new_epoch(), on_ended=on_ended)

    def on_layer(layer: int, chunks: Sequence[ScheduledChunk]) -> None:
        for chunk in chunks:
            num_computed = chunk.request.num_computed + chunk.num_tokens
            sender.publish(TransferId(chunk.request.request_id), num_computed, [layer])
        for function in after_layer:
            function(layer)

    def finish(report: StepReport) -> None:
        for output in report.outputs:
            sender.finish(TransferId(output.request.request_id))

    listeners: list[Callable[[StepReport], None]] = [finish]

    def on_step(report: StepReport) -> None:
        for listener in listeners:
            listener(report)

    thread = EngineThread(engine, on_step, hooks=StepHooks(on_layer=on_layer))
    size = engine.pool.layout.layer_block_bytes
    outbox = Outbox(sender, thread, max_piece_bytes=2 * size)
    thread.start()
    try:
        yield Prefilling(engine, thread, sender, outbox, listeners, after_layer, ended)
    finally:
        await asyncio.to_thread(thread.stop, 30)
