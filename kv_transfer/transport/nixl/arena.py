"""P's memory, as D must know it to read from it by itself: one memory, or that of each rank.

block b of plane p   | heads 0 1 | heads 2 3 |
                       rank 0      rank 1         a piece of all heads: one part of each rank,
                                                  which land side by side; of heads 2 3 alone:
                                                  one part, of rank 1
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from baton.kv_transfer.transport.block_tickets import BlockTicket, read_ticket
from baton.kv_transfer.transport.control.client import AnnouncedPiece
from baton.kv_transfer.transport.nixl.reading import Grid, Name, Reading, ReadPart
from baton.kv_transfer.transport.rank_shares import RankShare, kept_by

MAX_KNOWN = 1 << 12
"""Parts of a peer's planes whose ranks are remembered."""


class Registered(msgspec.Struct, frozen=True):
    """Memory that a process has registered, as it says."""

    agent: bytes
    """Its agent's metadata."""
    planes: list[int]
    """Addresses."""
    mem_type: str
    device: int


class RankArena(RankShare, frozen=True, kw_only=True):
    """The memory of one rank."""

    agent: int
    """Number of the agent that has registered it, among the arena's."""
    planes: list[int]
    """Addresses."""
    mem_type: str
    device: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.planes) != len(self.block_bytes):
            raise ValueError("a rank that says not where each of its planes is")

    def grid(self, plane: int, span: range, num_blocks: int) -> tuple[Grid, range]:
        """These bytes of all blocks, and the planes whose rows the grid has: `plane` and those
        around it that are alike, which one grid serves."""
        own = plane - self.first_plane
        alike = list(zip(self.block_bytes, self.starts, strict=True))
        first, stop = own, own + 1
        while first and alike[first - 1] == alike[own]:
            first -= 1
        while stop < len(alike) and alike[stop] == alike[own]:
            stop += 1
        inner = span.start - self.starts[own]
        grid = Grid(
            starts=tuple(address + inner for address in self.planes[first:stop]),
            count=num_blocks,
            size=len(span),
            stride=self.block_bytes[own],
            mem_type=self.mem_type,
            device=self.device,
        )
        return grid, range(self.first_plane + first, self.first_plane + stop)


class Arena(msgspec.Struct, frozen=True):
    """P's answer: how to reach its memory. Of one in pieces `agent` and `planes` are empty: a D
    that knows nothing of ranks finds no agent."""

    agent: bytes
    planes: list[int]
    num_blocks: int
    block_bytes: list[int]
    """Bytes of a block of all heads, by plane."""
    mem_type: str
    device: int
    agents: list[bytes] = []
    """Metadata of the agents that have registered the ranks' memory."""
    ranks: list[RankArena] = []

    @property
    def all_agents(self) -> list[bytes]:
        return self.agents if self.ranks else [self.agent]

    @property
    def all_ranks(self) -> list[RankArena]:
        """An arena that is whole is that of one rank."""
        if self.ranks:
            return self.ranks
        return [
            RankArena(
                agent=0,
                planes=self.planes,
                block_bytes=self.block_bytes,
                starts=[0] * len(self.planes),
                mem_type=self.mem_type,
                device=self.device,
            )
        ]


class PieceRange(NamedTuple):
    """What one reader reads of a piece."""

    planes: range
    """Counted from the first plane of the piece."""
    span: range
    """Bytes of each block, counted from the first that the piece has."""


class PeerMemory:
    """The memory of one P, as its agents are known here."""

    def __init__(self, arena: Arena, names: Sequence[Name]) -> None:
        """`names` are those of the arena's agents, in order."""
        self.names = names
        self._arena = arena
        self._ranks = arena.all_ranks
        self._known: dict[tuple[int, range], list[tuple[int, range]]] = {}

    def block_size(self, announced: AnnouncedPiece) -> int:
        """Bytes of each block that a piece has. Raises TransferCut for what is not in the arena."""
        return self._ticket(announced).size

    def reading(self, announced: AnnouncedPiece, of_piece: PieceRange | None = None) -> Reading:
        """How to read a piece, or a range of it. Raises TransferCut for what is not in the
        arena."""
        ticket = self._ticket(announced)
        if of_piece is None:
            of_piece = PieceRange(range(announced.num_planes), range(ticket.size))
        planes, span = of_piece.planes, of_piece.span
        first = announced.message.plane + planes.start
        wanted = range(ticket.offset + span.start, ticket.offset + span.stop)
        planes_by_source: dict[tuple[int, range], list[int]] = {}
        for plane in range(first, first + len(planes)):
            for source in self._sources(plane, wanted):
                planes_by_source.setdefault(source, []).append(plane)
        parts = [
            part
            for source, planes in planes_by_source.items()
            for part in self._parts(source, planes, ticket.blocks, first, wanted.start)
        ]
        return Reading(parts, len(span), len(planes) * len(ticket.blocks))

    def _ticket(self, announced: AnnouncedPiece) -> BlockTicket:
        arena = self._arena
        return read_ticket(announced, num_blocks=arena.num_blocks, block_bytes=arena.block_bytes)

    def _parts(
        self,
        source: tuple[int, range],
        planes: Sequence[int],
        blocks: Sequence[int],
        first_plane: int,
        first_byte: int,
    ) -> Iterator[ReadPart]:
        """These bytes of the blocks in all of these planes, for a piece that begins with that plane
        and that byte of each block."""
        number, span = source
        rank, count, num_blocks = self._ranks[number], len(blocks), self._arena.num_blocks
        while planes:
            grid, alike = rank.grid(planes[0], span, num_blocks)
            together = [plane for plane in planes if plane in alike]
            planes = planes[len(together) :]  # they are in order
            starts = [(plane - alike.start) * num_blocks for plane in together]
            rows = [(plane - first_plane) * count for plane in together]
            yield ReadPart(
                peer=self.names[rank.agent],
                grid=grid,
                numbers=[start + block for start in starts for block in blocks],
                rows=[row + index for row in rows for index in range(count)],
                offset=span.start - first_byte,
            )

    def _sources(self, plane: int, wanted: range) -> list[tuple[int, range]]:
        """See `kept_by`."""
        if (plane, wanted) in self._known:
            return self._known[plane, wanted]
        found = kept_by(self._ranks, plane, wanted)
        if len(self._known) >= MAX_KNOWN:
            self._known.clear()
        self._known[plane, wanted] = found
        return found
