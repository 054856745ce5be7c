"""What D asks for when it opens a stream: everything, or the pieces that came with wrong bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from baton.core.errors import CorruptPiece
from baton.kv_transfer.handoff.messages import BlockRange, KvPiece, OpenTransfer
from baton.kv_transfer.handoff.reservation import Reservation, ReservedStream


def opening(lease: Reservation, stream: ReservedStream) -> OpenTransfer:
    """The opening for everything that the stream is to bring."""
    return OpenTransfer(
        transfer_id=lease.transfer_id,
        sender_epoch=stream.source.epoch,
        receiver_epoch=lease.receiver_epoch,
        layout=stream.wanted,
        first_block=stream.blocks.start,
    )


def once_more(before: OpenTransfer, corrupt: Sequence[CorruptPiece]) -> OpenTransfer:
    """The opening `before`, for these pieces alone."""
    only = tuple(
        BlockRange(plane, error.blocks.start, error.blocks.stop)
        for error in corrupt
        for plane in range(error.plane, error.plane + error.num_planes)
    )
    return replace(before, first_block=min(span.start for span in only), only=only)


def is_asked_for(piece: KvPiece, asked: OpenTransfer) -> bool:
    """A sender that knows of no `only` sends everything: too much for the sake of a piece."""
    start, stop = piece.first_block, piece.first_block + piece.num_blocks
    return not asked.only or all(
        any(of == plane and first <= start and stop <= end for of, first, end in asked.only)
        for plane in piece.planes
    )
