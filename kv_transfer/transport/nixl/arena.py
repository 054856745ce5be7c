"""P's memory, as D must know it to read from it by itself."""

from __future__ import annotations

import msgspec

from baton.kv_transfer.transport.block_tickets import read_ticket
from baton.kv_transfer.transport.control.client import AnnouncedPiece
from baton.kv_transfer.transport.nixl.reads import Grid


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

    def where(self, announced: AnnouncedPiece) -> tuple[Grid, list[int]]:
        """The memory that the planes of a piece lie in, and which of its stretches the blocks are.

        Raises TransferCut for what is not in the arena.
        """
        ticket = read_ticket(announced, num_blocks=self.num_blocks, block_bytes=self.block_bytes)
        first = announced.message.plane
        stop = first + announced.num_planes
        first_alike, stop_alike = self._alike(first)
        grid = Grid(
            starts=tuple(start + ticket.offset for start in self.planes[first_alike:stop_alike]),
            count=self.num_blocks,
            size=ticket.size,
            stride=self.block_bytes[first],
            mem_type=self.mem_type,
            device=self.device,
        )
        rows = range(
            (first - first_alike) * self.num_blocks, (stop - first_alike) * self.num_blocks
        )
        return grid, [row + block for row in rows[:: self.num_blocks] for block in ticket.blocks]

    def _alike(self, plane: int) -> tuple[int, int]:
        """The planes around this one whose blocks are as long: one grid serves all of them."""
        sizes, first, stop = self.block_bytes, plane, plane + 1
        while first and sizes[first - 1] == sizes[plane]:
            first -= 1
        while stop < len(sizes) and sizes[stop] == sizes[plane]:
            stop += 1
        return first, stop
