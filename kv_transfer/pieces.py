"""How a stretch of computed KV is cut into pieces. Pure but for the copying of bytes.

reading   views[layer][block]: what is published beyond a cursor, still in the sender's pool
cut       blocks [start, stop) of one layer, bounded in bytes; layer 0 first
piece     a cut's bytes, copied, with the checksums of what was read
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from baton.core.ids import Epoch, TransferId
from baton.core.kv_layout import KvLayout
from baton.kv_transfer.integrity import unit_checksums
from baton.kv_transfer.messages import KvPiece


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reading:
    """Some blocks of a transfer that are being read; compared by identity.

    The views stay valid until `Sender.end_read` is given this reading.
    """

    transfer_id: TransferId
    sender_epoch: Epoch
    receiver_epoch: Epoch
    layout: KvLayout
    first_block: int
    views: tuple[tuple[memoryview, ...], ...]
    """[layers][blocks], each [KV heads][2][block size][head dim] as bytes."""

    @property
    def num_blocks(self) -> int:
        return len(self.views[0])

    @property
    def stop(self) -> int:
        """The first block after this reading: where the next one begins."""
        return self.first_block + self.num_blocks


@dataclass(frozen=True, slots=True)
class Cut:
    layer: int
    start: int
    """Within the reading."""
    stop: int


def cuts(reading: Reading, max_piece_bytes: int) -> Iterator[Cut]:
    """The pieces to make of a reading: each at most `max_piece_bytes` long, or one block."""
    num_blocks = max(1, max_piece_bytes // reading.layout.layer_block_bytes)
    for layer in range(len(reading.views)):
        for start in range(0, reading.num_blocks, num_blocks):
            yield Cut(layer, start, min(start + num_blocks, reading.num_blocks))


def make_piece(reading: Reading, cut: Cut) -> KvPiece:
    """Copy a cut out of the pool. May run on any thread while the reading lasts."""
    views = reading.views[cut.layer][cut.start : cut.stop]
    # Sums are taken of the pool's own bytes, so that a copy that goes wrong is noticed as well.
    sums = [unit_checksums(view, reading.layout.unit_bytes) for view in views]
    return KvPiece(
        transfer_id=reading.transfer_id,
        sender_epoch=reading.sender_epoch,
        receiver_epoch=reading.receiver_epoch,
        layer=cut.layer,
        first_block=reading.first_block + cut.start,
        data=b"".join(views),
        checksums=tuple(checksum for of_block in sums for checksum in of_block),
    )
