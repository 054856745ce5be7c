"""What D must know of P's memory to read from it, and the tickets that name blocks of it.

ticket   where in its block a view begins, how long it is; the blocks' numbers
"""

from __future__ import annotations

import struct

import msgspec

from baton.core.errors import TransferError
from baton.kv_transfer.handoff.transport import LentPiece
from baton.kv_transfer.transport.control.client import Announced
from baton.kv_transfer.transport.nixl.reads import Grid

_SPAN = struct.Struct("<II")


def ticket_of(piece: LentPiece) -> bytes:
    span = _SPAN.pack(piece.block_offset, piece.num_bytes // len(piece.views))
    return span + struct.pack(f"={len(piece.blocks)}I", *piece.blocks)


class Arena(msgspec.Struct, frozen=True):
    """P's answer: how to reach its memory."""

    agent: bytes
    planes: list[int]
    """Addresses."""
    num_blocks: int
    block_bytes: list[int]
    """Bytes of a block, by plane."""
    mem_type: str
    device: int

    def where(self, announced: Announced) -> tuple[Grid, list[int]]:
        """The memory that the planes of a piece lie in, and which of its stretches the blocks are.

        Raises TransferError for what is not in the arena.
        """
        message = announced.message
        try:
            offset, size = _SPAN.unpack_from(message.ticket)
            blocks = memoryview(message.ticket)[_SPAN.size :].cast("I")
        except (struct.error, TypeError) as error:
            raise TransferError(f"a ticket that cannot be read: {error}") from error
        first, stop = message.plane, message.plane + announced.num_planes
        is_inside = (
            len(blocks) == message.num_blocks > 0
            and size > 0
            and first < stop <= len(self.planes)
            and {*self.block_bytes[first:stop]} == {self.block_bytes[first]}
            and offset + size <= self.block_bytes[first]
            and max(blocks) < self.num_blocks
        )
        if not is_inside:
            raise TransferError("a ticket for what is not in the sender's memory")
        first_alike, stop_alike = self._alike(first)
        grid = Grid(
            starts=tuple(start + offset for start in self.planes[first_alike:stop_alike]),
            count=self.num_blocks,
            size=size,
            stride=self.block_bytes[first],
            mem_type=self.mem_type,
            device=self.device,
        )
        rows = range(
            (first - first_alike) * self.num_blocks, (stop - first_alike) * self.num_blocks
        )
        return grid, [row + block for row in rows[:: self.num_blocks] for block in blocks]

    def _alike(self, plane: int) -> tuple[int, int]:
        """The planes around this one whose blocks are as long: one grid serves all of them."""
        sizes, first, stop = self.block_bytes, plane, plane + 1
        while first and sizes[first - 1] == sizes[plane]:
            first -= 1
        while stop < len(sizes) and sizes[stop] == sizes[plane]:
            stop += 1
        return first, stop
