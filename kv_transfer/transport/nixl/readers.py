"""The readers of pieces for this replica: its one agent, or each of its ranks for its own heads.

    block b of plane p, D's    | heads 0 1 | heads 2 3 |
                                 rank 0      rank 1        each reads its own from P's memory, all
                                                           at once, whichever ranks P has

A piece of which a block is not all of a block of D's is read by the lead alone: it must be put
together, or taken apart, before it can be written. So is what several ranks keep whole (latents,
features): each of them would fetch the same bytes. The lead fetches them once, and writes them to
all of these ranks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

from baton.core.kv_arena import KvArena
from baton.core.rank_memory import RankPart, answer_in_time
from baton.kv_transfer.transport.control.client import AnnouncedPiece
from baton.kv_transfer.transport.nixl.arena import Arena, PeerMemory, PieceRange
from baton.kv_transfer.transport.nixl.rank_reads import FarRead, FarReads
from baton.kv_transfer.transport.nixl.reading import Name, Reading
from baton.kv_transfer.transport.nixl.reads import NixlReads, ReadResult


@dataclass(slots=True, eq=False)
class RankedRead:
    """A piece of which each rank has read its part; implements `RankRows`."""

    parts: Sequence[RankPart]
    reads: Sequence[ReadResult | FarRead]
    """In the order of the parts."""
    num_planes: int
    shape: tuple[int, int]
    """Blocks of all planes, bytes of each."""
    _on_host: Tensor | None = field(default=None, init=False)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: slice) -> Tensor:
        return self.cpu()[index]

    def give_back(self) -> None:
        """See `ReadResult`."""
        for read in self.reads:
            read.give_back()

    def rows(self, num_rows: int) -> RankedRead:
        """See `ReadResult.rows`."""
        return self

    def cpu(self) -> Tensor:
        """[blocks of all planes, bytes] on this host; waits for the ranks, once."""
        if self._on_host is None:  # a piece taken plane by plane asks for each of them
            self._on_host = self._joined([read.look() for read in self.reads], torch.uint8, 1)
        return self._on_host

    def checksums(self, unit_bytes: int) -> bytes:
        """See `RankRows.checksums`."""
        sums = [read.sum_up(unit_bytes) for read in self.reads]
        return self._joined(sums, torch.int64, unit_bytes).numpy().tobytes()

    def _joined(
        self, answers: Sequence[bytes | Future[bytes]], dtype: torch.dtype, num_bytes: int
    ) -> Tensor:
        """What is known of the ranks' parts, one number for so many bytes of each block."""
        num_rows, size = self.shape
        num_blocks = num_rows // self.num_planes
        joined = torch.empty(self.num_planes, num_blocks, size // num_bytes, dtype=dtype)
        for part, answer in zip(self.parts, answers, strict=True):
            planes = slice(part.planes.start, part.planes.stop)
            numbers = slice(part.span.start // num_bytes, part.span.stop // num_bytes)
            target = joined[planes, :, numbers]
            data = bytearray(answer_in_time(answer))
            target.copy_(torch.frombuffer(data, dtype=dtype).view(target.shape))
        return joined.flatten(0, 1)


Landed: TypeAlias = ReadResult | RankedRead
"""The bytes of a piece, in buffers of one process or of several. Call `give_back` once."""
Peer: TypeAlias = Sequence[PeerMemory]
"""One P's memory, as each reader's agent knows it."""


class Readers:
    """Belongs to an event loop."""

    def __init__(self, own: NixlReads, arena: KvArena | None) -> None:
        """`arena`: this replica's, if each of its ranks is to read for itself."""
        self._arena = arena
        shares = [] if arena is None else arena.shares[1:]
        lines = [share.line for share in shares if share.line is not None]
        assert len(lines) == len(shares), "see `can_read`"
        self._own = own
        self._all: list[NixlReads | FarReads] = [own, *map(FarReads, lines)]

    async def meet(self, arena: Arena) -> Peer:
        """Raises TransportFailed if one of the readers cannot reach it."""
        names: list[list[Name]] = [[] for _ in self._all]

        async def add(reader: NixlReads | FarReads, found: list[Name]) -> None:
            for agent in arena.all_agents:
                found.append(await reader.add_peer(agent))

        try:
            adding = [add(*each) for each in zip(self._all, names, strict=True)]
            for outcome in await asyncio.gather(*adding, return_exceptions=True):
                if isinstance(outcome, BaseException):
                    raise outcome
        except BaseException:
            self._forget(names)
            raise
        return [PeerMemory(arena, of_reader) for of_reader in names]

    def forget(self, peer: Peer) -> None:
        self._forget([memory.names for memory in peer])

    def read(self, peer: Peer, announced: AnnouncedPiece) -> asyncio.Future[Any]:
        """Fetch a piece; cancelling gives it up. Raises what `NixlReads.read` raises, and
        TransferCut for what is not in the peer's arena."""
        size = peer[0].block_size(announced)
        ranges = self._ranges(announced, size)
        if not ranges:
            return self._own.read(peer[0].reading(announced))
        readings = [
            (rank, of_rank, peer[rank].reading(announced, of_rank)) for rank, of_rank in ranges
        ]
        return asyncio.create_task(self._read_by_ranks(readings, announced, size))

    def _ranges(self, announced: AnnouncedPiece, size: int) -> list[tuple[int, PieceRange]]:
        """What each rank is to read of a piece with so many bytes of each block; nothing if the
        lead is to read all of it."""
        first, stop = announced.message.plane, announced.message.plane + announced.num_planes
        arena, found = self._arena, []
        if arena is None or {*arena.block_bytes[first:stop]} != {size}:
            return []
        for rank, share in enumerate(arena.shares):
            begin = max(first, share.first_plane)
            end = min(stop, share.first_plane + len(share.block_bytes))
            if begin < end:
                own = slice(begin - share.first_plane, end - share.first_plane)
                spans = {*zip(share.starts[own], share.block_bytes[own], strict=True)}
                if len(spans) > 1:
                    return []
                [(start, num_bytes)] = spans
                planes = range(begin - first, end - first)
                found.append((rank, PieceRange(planes, range(start, start + num_bytes))))
        kept_whole = [plane for _, (planes, span) in found if len(span) == size for plane in planes]
        return found if len({*kept_whole}) == len(kept_whole) else []

    async def _read_by_ranks(
        self,
        readings: Sequence[tuple[int, PieceRange, Reading]],
        announced: AnnouncedPiece,
        size: int,
    ) -> RankedRead:
        """It fails with the first of them: the others are given up then."""
        reads: list[asyncio.Future[Any]] = []
        try:
            reads += [self._all[rank].read(reading) for rank, _, reading in readings]
            landed = await asyncio.gather(*reads)
        except BaseException:
            for read in reads:
                drop(read)
            raise
        parts = [
            RankPart(
                rank=rank,
                planes=of_rank.planes,
                span=of_rank.span,
                rows=read.id if isinstance(read, FarRead) else read.memory,
            )
            for (rank, of_rank, _), read in zip(readings, landed, strict=True)
        ]
        return RankedRead(parts, landed, announced.num_planes, (announced.num_views, size))

    def _forget(self, names: Sequence[Sequence[Name]]) -> None:
        for reader, of_reader in zip(self._all, names, strict=True):
            for name in of_reader:
                reader.forget_peer(name)


def can_read(arena: KvArena | None) -> bool:
    """Whether each rank of this replica can be asked to read what it keeps."""
    others = [] if arena is None else arena.shares[1:]
    return bool(others) and all(share.line is not None for share in others)


def drop(reading: asyncio.Future[Any]) -> None:
    """Give a read up, or back."""
    if not reading.cancel() and not reading.cancelled() and not reading.exception():
        reading.result().give_back()
