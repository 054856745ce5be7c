"""A prefill and a decode replica without a model: real pools and caches, KV that can be predicted.

The KV of a token is a hash of every token up to it, of the layer and the head: it is the same
however blocks are cut and heads are split, two are equal only if they should be, and any byte in
the wrong place shows.
"""

from __future__ import annotations

import array
from collections.abc import Callable, Sequence
from functools import lru_cache
from hashlib import shake_128
from itertools import product
from typing import Any

from tests.engine.ranks.sharded_caches import in_tensor_ranks

from baton.core.clock import ManualClock
from baton.core.ids import Epoch, RequestId, TransferId, new_epoch
from baton.core.kv_arena import Introduce
from baton.core.kv_layout import KvLayout
from baton.core.kv_pool import Holder, HolderKind
from baton.engine.blocks.block_pool import BlockPool
from baton.engine.memory.kv_cache import KvCache
from baton.kv_transfer.handoff.auditor import AuditReport, audit
from baton.kv_transfer.handoff.messages import KvPiece, OpenTransfer, Outcome, SettleTransfer
from baton.kv_transfer.handoff.reservation import KvSource, Reservation, WantedKv
from baton.kv_transfer.receiving.filling import Fill
from baton.kv_transfer.receiving.placing import place
from baton.kv_transfer.receiving.receiver import Receiver, ReceiverConfig
from baton.kv_transfer.sending.pieces import Cut, read
from baton.kv_transfer.sending.sender import Sender, SenderConfig

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


def kv_of(tokens: Sequence[int], block: int, plane: int, layout: KvLayout = LAYOUT) -> bytes:
    """What the cache holds in one block and plane once all of `tokens` are computed.

    Zeros where there is no token yet. Not for layouts with scales.
    """
    seen = tuple(tokens[: (block + 1) * layout.block_size])
    return _kv_of(seen, block, plane, layout.planes[plane])


@lru_cache(20_000)
def _kv_of(tokens: tuple[int, ...], block: int, plane: int, own: KvLayout) -> bytes:
    size, start = own.token_bytes, block * own.block_size
    missing = bytes(size * (start + own.block_size - len(tokens)))
    found = []
    for head in range(own.first_kv_head, own.stop_kv_head):
        cells = [
            _cell(tokens[: position + 1], plane, head, size)
            for position in range(start, len(tokens))
        ]
        for start_of in range(0, own.num_vectors * size, size):
            found += [*(cell[start_of : start_of + size] for cell in cells), missing]
    return b"".join(found)


@lru_cache(100_000)
def _cell(seen: tuple[int, ...], plane: int, head: int, size: int) -> bytes:
    """Of the last of the tokens: its K, then its V; or its latent."""
    return shake_128(array.array("I", (*seen, plane, head)).tobytes()).digest(2 * size)


def used(
    data: bytes | memoryview, block: int, num_tokens: int, plane: int, layout: KvLayout = LAYOUT
) -> bytes:
    """Of one block and plane: what belongs to one of the first `num_tokens` tokens."""
    own = layout.planes[plane]
    size = own.token_bytes
    num_used = min(own.block_size, num_tokens - block * own.block_size)
    halves = range(0, own.layer_block_bytes, own.block_size * size)
    return b"".join(bytes(data[start : start + num_used * size]) for start in halves)


def request_holder(request_id: str) -> Holder:
    return Holder(HolderKind.REQUEST, request_id)


def cache_of(
    layout: KvLayout,
    num_ranks: int,
    num_blocks: int,
    device: str,
    introduce: Introduce | None = None,
) -> Any:
    """A KvCache, or that of a lead of several ranks."""
    if num_ranks == 1:
        return KvCache(layout, num_blocks, device)
    return in_tensor_ranks(layout, num_ranks, num_blocks, introduce)


class PrefillReplica:
    def __init__(
        self,
        *,
        num_blocks: int = 32,
        layout: KvLayout = LAYOUT,
        config: SenderConfig | None = None,
        num_ranks: int = 1,
        device: str = "cpu",
        introduce: Introduce | None = None,
    ) -> None:
        """`introduce`: how ranks but the first introduce their memory to D, if they do."""
        self.layout = layout
        self.cache: KvCache = cache_of(layout, num_ranks, num_blocks, device, introduce)
        self.pool = BlockPool(self.cache)
        self.on_ended: Callable[[TransferId], None] = lambda _: None
        self.sender = Sender(
            self.pool, new_epoch(), config, on_ended=lambda ended: self.on_ended(ended)
        )
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

    def compute(
        self,
        transfer_id: TransferId = TRANSFER,
        num_tokens: int | None = None,
        on_layer: Callable[[int], None] = lambda layer: None,
    ) -> None:
        """Fill the blocks of the first `num_tokens` tokens, but for those of a prefix hit.

        Layer by layer, as the engine does; `on_layer` is what others do in between.
        """
        holder, prompt = request_holder(transfer_id), self.requests[transfer_id]
        num_cached = self.num_cached[transfer_id]
        done = prompt if num_tokens is None else prompt[: max(num_tokens, num_cached)]
        first_block = num_cached // self.layout.block_size
        for layer in range(self.layout.num_layers + (self.layout.features is not None)):
            blocks = range(first_block, self.layout.num_blocks_for(len(done)))
            for block, plane in product(blocks, self.layout.planes_of(layer)):
                data = kv_of(done, block, plane, self.layout)
                if self.pool.view(holder, block, plane) != data:
                    self.cache.write(self.pool.table(holder)[block], plane, memoryview(data))
            self.sender.publish(transfer_id, len(done), [layer])
            on_layer(layer)
        self.pool.commit(holder, prompt, len(done), b"")

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
        num_ranks: int = 1,
        device: str = "cpu",
        introduce: Introduce | None = None,
    ) -> None:
        """`introduce`: how ranks but the first read for themselves, if they do."""
        self.layout = layout
        self.clock = ManualClock()
        self.cache: KvCache = cache_of(layout, num_ranks, num_blocks, device, introduce)
        self.pool = BlockPool(self.cache)
        self.receiver = Receiver(self.pool, new_epoch(), config)
        self.requests: dict[TransferId, tuple[int, ...]] = {}
        self.sender_address = "p"
        self.sender_layout = layout
        """Of the sender it reserves for."""
        self.sender_runs: tuple[range, ...] = ()
        """Its ranks' heads, as it says."""

    def reserve(
        self,
        sender_epoch: Epoch,
        transfer_id: TransferId = TRANSFER,
        prompt: tuple[int, ...] = PROMPT,
        reclaim: Callable[[], bool] = lambda: False,
    ) -> Reservation | None:
        source = KvSource(
            epoch=sender_epoch,
            address=self.sender_address,
            layout=self.sender_layout,
            head_runs=self.sender_runs,
        )
        wanted = WantedKv(
            transfer_id=transfer_id,
            sources=(source,),
            tokens=prompt,
            salt=b"",
            time_left_s=TIME_LEFT_S,
        )
        return self.receiver.reserve(wanted, self.clock(), reclaim=reclaim)

    def accept(self, piece: KvPiece) -> Fill:
        """Begin, place and end, as a writer does. Raises what they raise."""
        filling = self.receiver.filling(piece.transfer_id)
        fill = filling.begin(0, piece, self.clock())
        bad = place(fill)
        filling.end(fill, not bad)
        if bad:
            filling.refuse(fill, bad)
        return fill

    def adopt(self, transfer_id: TransferId = TRANSFER, prompt: tuple[int, ...] = PROMPT) -> None:
        """What the engine does with a sealed lease."""
        holder = request_holder(transfer_id)
        self.pool.hand_over(self.receiver.adopt(transfer_id), holder)
        self.pool.commit(holder, prompt, len(prompt), b"")
        self.requests[transfer_id] = prompt

    def holds_kv(self, transfer_id: TransferId = TRANSFER) -> bool:
        """Whether an adopted request's blocks hold exactly the KV of its prompt."""
        holder, prompt = request_holder(transfer_id), self.requests[transfer_id]
        return all(
            used(self.pool.view(holder, block, plane), block, len(prompt), plane, self.layout)
            == used(
                kv_of(prompt, block, plane, self.layout), block, len(prompt), plane, self.layout
            )
            for block in range(self.layout.num_blocks_for(len(prompt)))
            for plane in range(self.layout.num_planes)
        )

    def finish(self, transfer_id: TransferId) -> None:
        self.pool.release(request_holder(transfer_id))
        del self.requests[transfer_id]

    def audit(self) -> AuditReport:
        requests = {RequestId(transfer_id) for transfer_id in self.requests}
        return audit(self.pool.census(), requests, self.receiver.lease_ids)


def copied(cut: Cut) -> KvPiece:
    """A piece as it arrives over a network: bytes of its own."""
    reading, contents = cut.reading, read(cut)
    return KvPiece(
        transfer_id=reading.transfer_id,
        sender_epoch=reading.sender_epoch,
        receiver_epoch=reading.receiver_epoch,
        plane=reading.plane + cut.planes.start,
        num_planes=len(cut.planes),
        first_block=reading.first_block + cut.start,
        views=tuple(memoryview(bytes(view)) for view in contents.views),
        checksums=contents.checksums,
    )


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
