"""Tickets for blocks of P's memory that D reads by itself, mapped or through NIXL.

ticket   where in its block a view begins, how long it is; the blocks' numbers     32 bits each

What a ticket says comes from another process: nothing of it is used to find memory before it was
held against the shape of P's arena, which P told when the two met.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from baton.core.errors import TransferCut
from baton.kv_transfer.handoff.transport import LentPiece
from baton.kv_transfer.transport.control.client import AnnouncedPiece

_SPAN = struct.Struct("<II")
_NUMBER_BYTES = 4


@dataclass(frozen=True, slots=True)
class BlockTicket:
    """The same part of some blocks, which are alike in each plane of the piece."""

    offset: int
    """Where in its block the part begins, in bytes."""
    size: int
    """Bytes of the part."""
    blocks: Sequence[int]
    """Their numbers in P's arena."""

    def pack(self) -> bytes:
        numbers = struct.pack(f"<{len(self.blocks)}I", *self.blocks)
        return _SPAN.pack(self.offset, self.size) + numbers


def ticket_of(piece: LentPiece) -> BlockTicket:
    return BlockTicket(piece.block_offset, piece.num_bytes // len(piece.views), piece.blocks)


def read_ticket(
    announced: AnnouncedPiece, *, num_blocks: int, block_bytes: Sequence[int]
) -> BlockTicket:
    """The ticket of a piece from an arena of so many blocks in each of its planes.

    Raises TransferCut for one that cannot be read, and for what is not in the arena.
    """
    message = announced.message
    try:
        offset, size = _SPAN.unpack_from(message.ticket)
        count, rest = divmod(len(message.ticket) - _SPAN.size, _NUMBER_BYTES)
        if rest:
            raise struct.error(f"{rest} bytes behind the last number")
        blocks = struct.unpack_from(f"<{count}I", message.ticket, _SPAN.size)
    except struct.error as error:
        raise TransferCut(f"a ticket that cannot be read: {error}") from error
    first, stop = message.plane, message.plane + announced.num_planes
    is_inside = (
        len(blocks) == message.num_blocks > 0
        and size > 0
        and first < stop <= len(block_bytes)
        and {*block_bytes[first:stop]} == {block_bytes[first]}
        and offset + size <= block_bytes[first]
        and max(blocks) < num_blocks
    )
    if not is_inside:
        raise TransferCut("a ticket for what is not in the sender's memory")
    return BlockTicket(offset, size, blocks)
