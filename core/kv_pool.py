"""What the transfer of KV may ask of the pool of blocks.

The pool belongs to the engine's thread: every method here is called on it, except that a view
taken by `view` may be read elsewhere for as long as its holder keeps its references.

Each reference to a block has exactly one holder. A block may have several references (a shared
prefix), and is free to be reused when it has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from baton.core.kv_layout import KvLayout


class HolderKind(StrEnum):
    REQUEST = "request"
    """A request that is being computed."""
    LEASE = "lease"
    """A handoff under way."""
    QUARANTINE = "quarantine"
    """A handoff that is over, but whose memory is still being read."""


@dataclass(frozen=True, slots=True)
class Holder:
    kind: HolderKind
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """The pool at one moment, for the auditor."""

    num_blocks: int
    ref_counts: Sequence[int]
    """By block: how many references the pool believes exist."""
    tables: Mapping[Holder, Sequence[int]]
    """By holder: its blocks in token order."""
    cached: frozenset[int]
    """Unreferenced blocks that keep their contents for a later prefix hit."""
    free: frozenset[int]
    """Unreferenced blocks without contents."""


class KvPool(Protocol):
    @property
    def layout(self) -> KvLayout: ...

    @property
    def num_blocks(self) -> int: ...

    def reserve(self, holder: Holder, tokens: Sequence[int], salt: bytes) -> int | None:
        """Give `holder` blocks for all of `tokens` and return how many tokens were cached.

        The blocks of the cached prefix are shared and must not be written; the others are fresh.
        At least one token is always left uncached. Returns None, with nothing changed, if
        too few blocks are available.
        """

    def share(self, source: Holder, target: Holder, num_blocks: int) -> None:
        """Let `target` hold references to the first `num_blocks` blocks of `source` too.

        Blocks that `target` holds already (by position) are kept as they are.
        """

    def hand_over(self, source: Holder, target: Holder) -> None:
        """Move all references of `source` to `target`, which must hold none."""

    def release(self, holder: Holder) -> None:
        """Give up all references of `holder`. Nothing happens if it has none."""

    def view(self, holder: Holder, index: int, layer: int) -> memoryview:
        """The bytes of the holder's `index`-th block in `layer`.

        [KV heads][2][block size][head dim], `layout.layer_block_bytes` long, read-only.
        """

    def write(self, holder: Holder, index: int, layer: int, data: memoryview) -> None:
        """Copy `data` (as from `view`) into the holder's `index`-th block, its alone."""

    def census(self) -> Census: ...
