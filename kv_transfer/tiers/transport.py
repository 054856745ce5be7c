"""The transport whose far end is this replica's own tiers: reading a prefix is a transfer like any.

    expect(transfer, names) -> open: pieces with the checksums of when they were written -> settle

D verifies them on arrival as it does any piece. Records are values of their own: nothing is lent,
and nothing needs to be settled.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager

from baton.core.errors import (
    CorruptPiece,
    LayoutMismatch,
    StaleEpoch,
    TransferAborted,
    UnknownTransfer,
)
from baton.core.ids import Epoch, TransferId
from baton.core.kv_layout import KvLayout
from baton.kv_transfer.handoff.messages import KvPiece, OpenTransfer, Outcome, SettleTransfer
from baton.kv_transfer.tiers.stack import Batch, TierStack

ADDRESS = "tiers"


class TierTransport:
    name = "tiers"

    def __init__(self, stack: TierStack) -> None:
        self._stack = stack
        self._names: dict[TransferId, Sequence[bytes]] = {}

    @contextmanager
    def expecting(self, transfer_id: TransferId, names: Sequence[bytes]) -> Iterator[None]:
        """Within the context the transfer may be opened; `names` are a prompt's from the start."""
        self._names[transfer_id] = names
        try:
            yield
        finally:
            del self._names[transfer_id]

    async def check(self, address: str, sender: Epoch, receiver: Epoch) -> None:
        """There is no way between that could be refused."""

    async def open(self, address: str, request: OpenTransfer) -> AsyncGenerator[KvPiece, None]:
        """See `Transport.open`."""
        names = self._expected(request)
        if not request.only:
            async with aclosing(self._read(request, names, request.first_block)) as pieces:
                async for piece in pieces:
                    yield piece
        for plane, start, stop in request.only:
            async with aclosing(self._read(request, names[:stop], start)) as pieces:
                async for piece in pieces:
                    if piece.plane == plane:
                        yield piece

    async def settle(self, address: str, request: SettleTransfer) -> Outcome:
        """See `Transport.settle`. Nothing was held for it."""
        return request.outcome or Outcome.UNKNOWN

    async def close(self) -> None:
        """There is nothing to let go of: the stack is its owner's to close."""

    async def _read(
        self, request: OpenTransfer, names: Sequence[bytes], block: int
    ) -> AsyncGenerator[KvPiece, None]:
        """All planes of the blocks from that one on."""
        async with aclosing(self._stack.read(names[block:])) as batches:
            async for batch in batches:
                for piece in self._pieces(request, block, batch):
                    yield piece
                block += len(batch.records)
        if block < len(names):
            raise TransferAborted(f"block {block} is not in the tiers any more, or was broken")

    def _expected(self, request: OpenTransfer) -> Sequence[bytes]:
        if request.sender_epoch != self._stack.epoch:
            raise StaleEpoch(f"{request.transfer_id} is for other tiers")
        names = self._names.get(request.transfer_id)
        if names is None:
            raise UnknownTransfer(f"the tiers were not told of {request.transfer_id}")
        if not _has_all_heads(request.layout, self._stack.format.layout):
            raise LayoutMismatch("the tiers keep the KV of all of this replica's heads")
        return names

    def _pieces(self, request: OpenTransfer, block: int, batch: Batch) -> Iterator[KvPiece]:
        format_ = self._stack.format
        if any(r.payload.nbytes != format_.layout.block_bytes for r in batch.records):
            raise CorruptPiece(f"a block from {block} on has not as many bytes as a block")
        by_plane = zip(*map(format_.planes, batch.records), strict=True)
        for plane, parts in enumerate(by_plane):
            yield KvPiece(
                transfer_id=request.transfer_id,
                sender_epoch=request.sender_epoch,
                receiver_epoch=request.receiver_epoch,
                plane=plane,
                first_block=block,
                views=tuple(view for view, _ in parts),
                checksums=b"".join([checksums for _, checksums in parts]),
                transport=batch.tier,
            )


def _has_all_heads(wanted: KvLayout, held: KvLayout) -> bool:
    return (wanted.first_kv_head, wanted.num_kv_heads) == (held.first_kv_head, held.num_kv_heads)
