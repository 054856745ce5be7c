"""A prefill and a decode replica without a model: real pools and caches, KV that can be predicted.

The KV of a block is a hash of every token up to its end, so two blocks are equal only if they
should be, and any byte in the wrong place shows.
"""

from __future__ import annotations

import array
import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import shake_128
from typing import TypeVar

from baton.core.clock import ManualClock
from baton.core.ids import Epoch, RequestId, TransferId, new_epoch
from baton.core.kv_layout import KvLayout
from baton.core.kv_pool import Holder, HolderKind
from baton.engine.block_pool import BlockPool
from baton.engine.kv_cache import KvCache
from baton.kv_transfer.auditor import AuditReport, audit
from baton.kv_transfer.messages import OpenTransfer, Outcome, SettleTransfer
from baton.kv_transfer.receiver import Receiver, ReceiverConfig
from baton.kv_transfer.reservation import Reservation
from baton.kv_transfer.sender import Sender, SenderConfig

T = TypeVar("T")

LAYOUT = KvLayout(
    model_fingerprint=b"model",
    dtype="float32",
    num_layers=2,
    num_kv_heads=2,
    head_dim=1,
    block_size=4,
)
TRANSFER = TransferId("kv-1")
PROMPT = tuple(range(100, 122))  # five full blocks and half of a sixth
TIME_LEFT_S = 60.0


def kv_of(tokens: Sequence[int], block: int, layer: int, layout: KvLayout = LAYOUT) -> bytes:
    """What the cache holds in one block and layer once all of `tokens` are computed."""
    seen = array.array("I", tokens[: (block + 1) * layout.block_size]).tobytes()
    return shake_128(seen + bytes([layer, block])).digest(layout.layer_block_bytes)


def request_holder(request_id: str) -> Holder:
    return Holder(HolderKind.REQUEST, request_id)


class PrefillReplica:
    def __init__(
        self, *, num_blocks: int = 32, layout: KvLayout = LAYOUT, config: SenderConfig | None = None
    ) -> None:
        self.layout = layout
        self.pool = BlockPool(KvCache(layout, num_blocks))
        self.sender = Sender(self.pool, new_epoch(), config)
        self.requests: dict[TransferId, tuple[int, ...]] = {}
        self.num_cached: dict[TransferId, int] = {}

    def grant(
        self,
        receiver_epoch: Epoch,
        transfer_id: TransferId = TRANSFER,
        prompt: tuple[int, ...] = PROMPT,
        now: float = 0.0,
    ) -> bool:
        """Take a prompt in; False if there are no blocks for it."""
        if not self._admit(transfer_id, prompt):
            return False
        self.sender.offer(
            transfer_id,
            receiver_epoch,
            source=request_holder(transfer_id),
            num_tokens=len(prompt),
            time_left_s=TIME_LEFT_S,
            now=now,
        )
        return True

    def compute(self, transfer_id: TransferId = TRANSFER, num_tokens: int | None = None) -> None:
        """Fill the blocks of the first `num_tokens` tokens, but for those of a prefix hit."""
        holder, prompt = request_holder(transfer_id), self.requests[transfer_id]
        num_cached = self.num_cached[transfer_id]
        done = prompt if num_tokens is None else prompt[: max(num_tokens, num_cached)]
        first_block = num_cached // self.layout.block_size
        for block in range(first_block, self.layout.num_blocks_for(len(done))):
            for layer in range(self.layout.num_layers):
                data = kv_of(done, block, layer, self.layout)
                if self.pool.view(holder, block, layer) != data:
                    self.pool.write(holder, block, layer, memoryview(data))
        self.pool.commit(holder, prompt, len(done), b"")
        self.sender.publish(transfer_id, len(done))

    def finish(self, transfer_id: TransferId = TRANSFER) -> None:
        """The request leaves the engine, its prompt computed or not."""
        self.sender.finish(transfer_id)
        self.pool.release(request_holder(transfer_id))
        del self.requests[transfer_id]

    def preempt(self, transfer_id: TransferId) -> None:
        self.pool.release(request_holder(transfer_id))

    def resume(self, transfer_id: TransferId) -> bool:
        return self._admit(transfer_id, self.requests[transfer_id])

    def audit(self) -> AuditReport:
        requests = {RequestId(transfer_id) for transfer_id in self.requests}
        return audit(self.pool.census(), requests, self.sender.lease_ids)

    def _admit(self, transfer_id: TransferId, prompt: tuple[int, ...]) -> bool:
        num_cached = self.pool.reserve(request_holder(transfer_id), prompt, b"")
        if num_cached is None:
            return False
        self.requests[transfer_id], self.num_cached[transfer_id] = prompt, num_cached
        return True


class DecodeReplica:
    def __init__(
        self,
        *,
        num_blocks: int = 32,
        layout: KvLayout = LAYOUT,
        config: ReceiverConfig | None = None,
    ) -> None:
        self.layout = layout
        self.clock = ManualClock()
        self.pool = BlockPool(KvCache(layout, num_blocks))
        self.receiver = Receiver(self.pool, new_epoch(), config)
        self.requests: dict[TransferId, tuple[int, ...]] = {}

    def reserve(
        self,
        sender_epoch: Epoch,
        transfer_id: TransferId = TRANSFER,
        prompt: tuple[int, ...] = PROMPT,
    ) -> Reservation | None:
        return self.receiver.reserve(
            transfer_id,
            sender_epoch,
            tokens=prompt,
            salt=b"",
            time_left_s=TIME_LEFT_S,
            now=self.clock(),
        )

    def adopt(self, transfer_id: TransferId = TRANSFER, prompt: tuple[int, ...] = PROMPT) -> None:
        """What the engine does with a sealed lease."""
        holder = request_holder(transfer_id)
        self.pool.hand_over(self.receiver.adopt(transfer_id), holder)
        self.pool.commit(holder, prompt, len(prompt), b"")
        self.requests[transfer_id] = prompt

    def holds_kv(self, transfer_id: TransferId = TRANSFER) -> bool:
        """Whether an adopted request's blocks hold exactly the KV of its prompt."""
        prompt = self.requests[transfer_id]
        return all(
            self.pool.view(request_holder(transfer_id), block, layer)
            == kv_of(prompt, block, layer, self.layout)
            for block in range(self.layout.num_blocks_for(len(prompt)))
            for layer in range(self.layout.num_layers)
        )

    def finish(self, transfer_id: TransferId) -> None:
        self.pool.release(request_holder(transfer_id))
        del self.requests[transfer_id]

    def audit(self) -> AuditReport:
        requests = {RequestId(transfer_id) for transfer_id in self.requests}
        return audit(self.pool.census(), requests, self.receiver.lease_ids)


class OneThread:
    """An `OwnerThread` with nothing to do between commands."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1)

    def call(self, function: Callable[[], T]) -> Awaitable[T]:
        return asyncio.shield(asyncio.wrap_future(self._executor.submit(function)))

    def post(self, function: Callable[[], None]) -> None:
        self._executor.submit(function)

    def stop(self) -> None:
        self._executor.shutdown()


def opening(prefill: PrefillReplica, decode: DecodeReplica) -> OpenTransfer:
    """D asks for everything. Tests change what they are about with `replace`."""
    return OpenTransfer(
        transfer_id=TRANSFER,
        sender_epoch=prefill.sender.epoch,
        receiver_epoch=decode.receiver.epoch,
        layout=decode.layout,
        first_block=0,
    )


def settling(
    prefill: PrefillReplica, decode: DecodeReplica, outcome: Outcome | None
) -> SettleTransfer:
    return SettleTransfer(
        transfer_id=TRANSFER,
        sender_epoch=prefill.sender.epoch,
        receiver_epoch=decode.receiver.epoch,
        outcome=outcome,
    )
