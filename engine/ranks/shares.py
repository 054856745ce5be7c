"""The ranks' shares of the KV, and their memory.

lead     makes the memory of every rank, on CPUs         SharedMemory, with a place
ranks    open theirs by its place
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor

from baton.core.kv_arena import ArenaShare
from baton.core.kv_layout import SCALE_BYTES, KvLayout
from baton.core.rank_memory import RankLine
from baton.engine.memory.kv_cache import KvCache, seal
from baton.kernels.cpu.shared_mapping import mapped

NOWHERE = memoryview(b"")
"""Empty, as device memory is not accessible to the host."""


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """The memory of one rank, mapped by the lead."""

    layout: KvLayout
    planes: Sequence[Tensor]
    """Bytes [blocks, bytes of its heads], one tensor per plane."""
    first_plane: int = 0
    """The model's number of the first plane."""
    memory: memoryview = NOWHERE
    """The whole memory, as mapped by this process; empty on a device."""
    starts: Sequence[int] = ()
    """Offset of each plane in it."""
    file: AnonymousFile | None = None
    """The file of the memory, if it was made here."""
    fd: int | None = None
    """See `ArenaShare`."""
    introduction: bytes = b""
    """See `ArenaShare`."""
    line: RankLine | None = None
    """See `ArenaShare`."""

    @classmethod
    def of_cache(cls, cache: KvCache) -> Share:
        """The share of this process itself, from the first plane on."""
        planes = [plane.view(torch.uint8).flatten(1) for plane in cache.planes]
        if not cache.is_in_memory:
            return cls(cache.layout, planes)
        where = cache.writables((), range(len(planes)))
        fd = cache.arena.fd
        return cls(cache.layout, planes, memory=where.memory, starts=where.rows, fd=fd)

    def of_plane(self, plane: int, rank: int) -> PlaneShare | None:
        """The share of a plane, as that of the `rank`-th; None if another stage stores it."""
        own = plane - self.first_plane
        if not 0 <= own < len(self.planes):
            return None
        start = self.starts[own] if self.starts else 0
        layout, planes = self.layout.planes[own], self.planes[own]
        return PlaneShare(layout, rank, own, planes, self.memory, start)

    @property
    def is_lendable(self) -> bool:
        """Whether other processes can read it directly: device memory of another process that is
        mapped here can be registered by that process only."""
        return bool(self.memory or self.introduction)

    @property
    def arena(self) -> ArenaShare:
        return ArenaShare(
            first_plane=self.first_plane,
            planes=self.planes,
            block_bytes=tuple(plane.layer_block_bytes for plane in self.layout.planes),
            starts=tuple(plane.first_kv_head * plane.unit_bytes for plane in self.layout.planes),
            fd=self.fd,
            introduction=self.introduction,
            line=self.line,
        )


@dataclass(frozen=True, slots=True, eq=False)
class PlaneShare:
    """One rank's share of one plane."""

    layout: KvLayout
    rank: int
    plane: int
    """The rank's number of the plane."""
    blocks: Tensor
    """Bytes [blocks, bytes of its heads]."""
    memory: memoryview
    """The memory that contains them; empty on a device."""
    start: int
    """Offset of the first block in that."""

    @property
    def heads(self) -> range:
        """KV heads, by the model's numbers."""
        return range(self.layout.first_kv_head, self.layout.stop_kv_head)

    def tail_spans(self, num_used: int) -> Iterator[tuple[int, int]]:
        """Byte ranges of a block's slots after the first `num_used`: of items, and of scales.

        An int4 block is written as a whole, or not at all.
        """
        layout = self.layout
        if layout.is_int4:
            yield 0, layout.layer_block_bytes
            return
        parts = [(0, layout.token_bytes)]
        if layout.has_scales:
            parts.append((layout.items_bytes, SCALE_BYTES))
        for head in range(layout.num_kv_heads):
            for begin, size in parts:
                for vector in range(layout.num_vectors):
                    start = head * layout.unit_bytes + begin + vector * layout.block_size * size
                    yield start + num_used * size, start + layout.block_size * size


class AnonymousFile:
    """A file without a name, closed with the last reference."""

    def __init__(self, num_bytes: int) -> None:
        self.fd = os.memfd_create("baton-kv-rank", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        weakref.finalize(self, os.close, self.fd)
        os.ftruncate(self.fd, num_bytes)


class SharedMemory:
    """An anonymous file for a rank's KV, which the rank opens by a path of this process."""

    def __init__(self, layout: KvLayout, num_blocks: int, first_plane: int = 0) -> None:
        sizes = [num_blocks * plane.layer_block_bytes for plane in layout.planes]
        file = AnonymousFile(sum(sizes))
        memory = mapped(file.fd, sum(sizes))
        whole = torch.frombuffer(memory, dtype=torch.uint8)
        planes = whole.split(sizes)  # type: ignore[no-untyped-call]
        by_plane = [plane.view(num_blocks, -1) for plane in planes]
        starts = [stop - size for size, stop in zip(sizes, accumulate(sizes), strict=True)]
        self.share = Share(layout, by_plane, first_plane, memory, starts, file, file.fd)
        self._file = file

    @property
    def place(self) -> tuple[int, int]:
        """Process and descriptor, for `open_place`."""
        return os.getpid(), self._file.fd

    def seal(self) -> None:
        """Make the file read-only for later openers, once the rank has mapped it."""
        seal(self._file.fd)


def open_place(place: tuple[int, int]) -> int:
    """A descriptor of the memory that another process of this host shares. Raises OSError."""
    pid, fd = place
    return os.open(Path("/proc") / str(pid) / "fd" / str(fd), os.O_RDWR | os.O_CLOEXEC)
