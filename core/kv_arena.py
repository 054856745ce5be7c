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
    """The part of each block that one rank stores, in consecutive planes."""

    first_plane: int
    planes: Sequence[Any]
    """Torch tensors [blocks][...], contiguous, as this process has them."""
    block_bytes: tuple[int, ...]
    """Bytes of one block that the rank stores; by plane."""
    starts: tuple[int, ...]
    """Their offset in a block of the whole cache; by plane."""
    fd: int | None
    """The anonymous file that holds its planes, as `KvArena.fd`."""
    introduction: bytes = b""
    """How other processes reach this memory, given by the rank that registered it
    (`RegisteredMemory`); empty: this process must register it."""
    line: RankLine | None = None
    """The connection to ask the rank to process its own memory; None: this process does it."""


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
        """Whether all bytes of a block are in one place, where any process with access can read
        them."""
        return bool(self.planes)


Introduce: TypeAlias = Callable[[KvArena, OwnRows], Introduction]
"""Registers a rank's own memory for others."""
