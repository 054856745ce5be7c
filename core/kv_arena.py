"""The memory behind a replica's blocks, as a transport that reads it by itself must know it.

plane p, block b:   base + num_blocks * sum(block_bytes[:p]) + b * block_bytes[p]

A cache of several ranks has none: its blocks are in pieces, and each rank's share is a memory of
its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from baton.core.rank_memory import Introduction, OwnRows, RankLine


@dataclass(frozen=True, slots=True, kw_only=True)
class ArenaShare:
    """What one rank keeps of each block, in some consecutive planes."""

    first_plane: int
    planes: Sequence[Any]
    """Torch tensors [blocks][...], contiguous, as this process has them."""
    block_bytes: tuple[int, ...]
    """What the rank keeps of one block; by plane."""
    starts: tuple[int, ...]
    """Where that begins in a block of the whole; by plane."""
    fd: int | None
    """The anonymous file that holds its planes, as `KvArena.fd`."""
    introduction: bytes = b""
    """How others reach this memory, as the rank says whose process registered it
    (`RegisteredMemory`); empty: this process has to register it."""
    line: RankLine | None = None
    """By which this process asks the rank to see to its own memory; None: it sees to it itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KvArena:
    num_blocks: int
    block_bytes: tuple[int, ...]
    """One block in one plane, all heads; by plane."""
    planes: Sequence[Any]
    """Torch tensors [blocks][...], contiguous; none where blocks are in pieces."""
    device: str
    """The device as torch names it: "cpu", "cuda:0"."""
    fd: int | None
    """The anonymous file that holds all planes, sealed against being written by others; None
    where memory is not a file: on a GPU, or on a system without memfd."""
    shares: tuple[ArenaShare, ...] = ()
    """Memory of each rank, where blocks are in pieces; none if some of it is only read through
    this process."""

    @property
    def is_whole(self) -> bool:
        """Whether all of a block lies in one place, to be read by whoever reaches it."""
        return bool(self.planes)


Introduce: TypeAlias = Callable[[KvArena, OwnRows], Introduction]
"""Registers a rank's own memory for others."""
