"""The memory of a sender on this host, which a receiver has mapped: one file, or one of each rank.

block b of plane p   | heads 0 1 | heads 2 3 |
                       file 0      file 1         what one file has of a block is looked at where
                                                  it lies; what several have is put together
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import NamedTuple

import msgspec

from baton.core.block_views import BlockViews, DividedBlocks
from baton.core.ids import Epoch
from baton.kernels.cpu.shared_mapping import mapped
from baton.kv_transfer.transport.block_tickets import read_ticket
from baton.kv_transfer.transport.control.client import AnnouncedPiece
from baton.kv_transfer.transport.rank_shares import RankShare, kept_by

MAX_KNOWN = 1 << 12
"""Parts of a sender's planes of which it is kept where they lie."""


class ShmArena(msgspec.Struct, frozen=True):
    socket: str
    """The socket's name in Linux's abstract namespace."""
    nonce: bytes
    num_blocks: int
    block_bytes: list[int]
    """Bytes of a block, by plane."""
    line_key: bytes = b""
    """What opens control streams at the socket; an older P knows none."""
    shares: list[RankShare] = []
    """What each rank's file holds, in the order of the files. Empty: one file holds everything. An
    older D does not know this field and refuses the first of several files for its size."""

    @property
    def files(self) -> list[RankShare]:
        """What is in each of the files."""
        return self.shares or [RankShare.of_all(self.block_bytes)]


class _Row(NamedTuple):
    """The same bytes of each block of one plane, in one of the files."""

    file: int
    block_bytes: int
    """From one to the next."""
    start: int
    """Where those of the first block are."""
    size: int


class _Run(NamedTuple):
    """Consecutive planes that one file has alike."""

    memory: memoryview
    block_bytes: int
    rows: list[int]
    """Where the first block of each plane begins."""


class _Parts(NamedTuple):
    """Planes of which several files have parts."""

    by_plane: list[list[_Row]]


@dataclass(frozen=True, slots=True, eq=False)
class MappedArena:
    """Another replica's arena."""

    sender_epoch: Epoch
    shape: ShmArena
    files: list[tuple[RankShare, memoryview]]
    connection: socket.socket
    """Ends when the sender does."""
    known: dict[tuple[range, range], list[_Run] | _Parts] = field(default_factory=dict)
    """Where bytes of blocks are, by planes and bytes."""

    def close(self) -> None:
        """Views that look into the memory keep it, for as long as they live."""
        if self.connection.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self.connection)
            self.connection.close()

    def views(self, announced: AnnouncedPiece) -> Sequence[memoryview]:
        """Where the blocks of a piece lie, or copies of those of which several ranks keep parts.

        Raises TransferCut for what is not in the arena.
        """
        shape, first = self.shape, announced.message.plane
        ticket = read_ticket(announced, num_blocks=shape.num_blocks, block_bytes=shape.block_bytes)
        wanted = range(ticket.offset, ticket.offset + ticket.size)
        planes = range(first, first + announced.num_planes)
        if (place := self.known.get((planes, wanted))) is None:
            if len(self.known) >= MAX_KNOWN:
                self.known.clear()
            place = self.known[planes, wanted] = self._place(planes, wanted)
        if isinstance(place, _Parts):
            copied = partial(self._copied, place.by_plane, ticket.blocks)
            return DividedBlocks(len(planes) * len(ticket.blocks), ticket.size, copied)
        found = [
            BlockViews(memory, [block * size for block in ticket.blocks], ticket.size, rows)
            for memory, size, rows in place
        ]
        return found[0] if len(found) == 1 else [view for of_run in found for view in of_run]

    def _place(self, planes: range, wanted: range) -> list[_Run] | _Parts:
        """Where these bytes of each plane's blocks lie."""
        shares = [share for share, _ in self.files]
        by_plane = [
            [self._row(plane, *source) for source in kept_by(shares, plane, wanted)]
            for plane in planes
        ]
        if any(len(rows) > 1 for rows in by_plane):
            return _Parts(by_plane)
        runs = groupby((row for [row] in by_plane), lambda row: row[:2])
        return [
            _Run(self.files[file][1], size, [row.start for row in rows])
            for (file, size), rows in runs
        ]

    def _row(self, plane: int, file: int, span: range) -> _Row:
        share = self.files[file][0]
        own = plane - share.first_plane
        start = self.shape.num_blocks * sum(share.block_bytes[:own])
        inner = span.start - share.starts[own]
        return _Row(file, share.block_bytes[own], start + inner, len(span))

    def _copied(
        self, rows: Sequence[Sequence[_Row]], blocks: Sequence[int], offset: int, size: int
    ) -> list[memoryview]:
        """The bytes of the blocks that a span covers, joined plane by plane."""
        whole = [
            b"".join(self._bytes_of(row, block) for row in of_plane)
            for of_plane in rows
            for block in blocks
        ]
        return [memoryview(each)[offset : offset + size] for each in whole]

    def _bytes_of(self, row: _Row, block: int) -> memoryview:
        start = row.start + block * row.block_bytes
        return self.files[row.file][1][start : start + row.size]


def mapped_file(file: int, num_bytes: int) -> memoryview:
    """Raises ValueError unless it is as large as it should be and will stay so."""
    seals = fcntl.fcntl(file, fcntl.F_GET_SEALS)
    if os.fstat(file).st_size != num_bytes or not seals & fcntl.F_SEAL_SHRINK:
        raise ValueError("not a sealed file of the size of the sender's arena")
    return mapped(file, num_bytes, is_writable=False)
