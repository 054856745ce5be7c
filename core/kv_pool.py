"""The interface of the pool of blocks for KV transfers.

The pool belongs to the engine's thread: every method is called on it, except that a view returned
by `view` may be read elsewhere for as long as its holder keeps its references.

Each reference to a block has exactly one holder. A block may have several references (a shared
prefix), and is free to be reused when it has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

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

    def __hash__(self) -> int:
        return hash(self.id)  # a string keeps its own; each step looks every request's up


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """The pool at one moment, for the auditor. A pool copies its numbers as they lie: engines wait
    meanwhile."""

    num_blocks: int
    ref_counts: Sequence[int]
    """References that the pool believes exist, by block id."""
    tables: Mapping[Holder, Sequence[int]]
    """Block ids in token order, by holder."""
    cached: Sequence[int]
    """Unreferenced blocks that keep their contents for a later prefix hit."""
    free: Sequence[int]
    """Unreferenced blocks without contents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """How many blocks of the pool are what, at one moment."""

    num_blocks: int
    tables: Mapping[Holder, Sequence[int]]
    """Block ids in token order, by holder."""
    num_cached: int
    num_free: int


@dataclass(frozen=True, slots=True)
class DeviceWrite:
    """Whole blocks for planes that are alike."""

    indices: Sequence[int]
    planes: range
    rows: Any
    """A torch tensor uint8 [planes x blocks, bytes] on the blocks' own device, or `RankRows`."""
    checksums: bytes
    """The checksum of each unit, by plane and block, as its sender computed it."""


class BlockSource(Protocol):
    """Some blocks of one holder in one plane, or in several that are alike, to be read on any
    thread while it keeps them."""

    @property
    def is_in_memory(self) -> bool:
        """Whether the blocks lie in this host's memory: otherwise views wait for a device."""

    def views(self, planes: range, start: int, stop: int) -> Sequence[memoryview]:
        """The `start`-th of them and so on, as from `KvPool.view`, in some of its planes, which are
        counted from the first of them: by plane and block. May wait for a device."""

    def checksums(
        self, planes: range, start: int, stop: int, part: slice, unit_bytes: int
    ) -> bytes:
        """Checksums of the units in some bytes of each of these blocks, summed up on the device
        that they lie on, for which it waits; only where not `is_in_memory`. Raises ValueError
        for units that no device sums up (`can_sum_up`)."""

    def can_sum_up(self, unit_bytes: int) -> bool:
        """Whether `checksums` works for units of this length."""


class BlockTargets(Protocol):
    """Fresh blocks of one holder, to be written on any thread while it keeps its references."""

    def are_together(self, heads: range) -> bool:
        """Whether the bytes that these KV heads have in a block lie together in this host's memory:
        otherwise they have no view."""

    def view(self, index: int, plane: int) -> memoryview:
        """The memory of the holder's `index`-th block in `plane`."""

    def views(self, indices: Sequence[int], planes: range) -> Sequence[memoryview]:
        """The views of several blocks in each of some planes that are alike; `part_of` them, where
        only those heads are together."""

    def write(self, index: int, plane: int, offset: int, data: memoryview) -> None:
        """Put `data` at byte `offset` of that block and plane."""

    def scratch(self, num_bytes: int) -> memoryview:
        """Memory of this host from which whole blocks are best written."""

    def write_blocks(self, indices: Sequence[int], planes: range, data: memoryview) -> None:
        """Put whole blocks of planes that are alike: `data` has them by plane and block.

        Returns when they are there, wherever the blocks lie.
        """

    def takes_rows(self, rows: Any, unit_bytes: int) -> bool:
        """Whether `write_rows` takes them: they lie on the blocks' own device, which can sum up
        units of this length."""

    def write_rows(self, writes: Sequence[DeviceWrite], unit_bytes: int) -> list[list[int]]:
        """As `write_blocks`, for all of the writes; each is verified first, where it lies.

        Returns the numbers of each one's units that are wrong. Rows with such units are written as
        zeros.
        """


class NameFollower(Protocol):
    """Is notified, on the owner's thread, of what can be found in a pool. It must not change the
    pool."""

    def named(self, name: bytes) -> None:
        """A block of this name is full and computed, perhaps one more of several."""

    def invalidated(self, name: bytes) -> None:
        """The KV computed under this name is wrong: copies must be dropped."""


class KvPool(Protocol):
    @property
    def layout(self) -> KvLayout: ...

    @property
    def num_blocks(self) -> int: ...

    def reserve(
        self, holder: Holder, tokens: Sequence[int], salt: bytes, *, tenant: str = ""
    ) -> int | None:
        """Give `holder` blocks for all of `tokens` and return how many tokens were cached.

        The blocks of the cached prefix are shared and must not be written; the others are fresh.
        At least one token is always left uncached. Returns None, with nothing changed, if
        too few blocks are available, or `tenant`, on whose account they are, may have no more.
        """

    @property
    def is_prefix_caching(self) -> bool:
        """Whether named blocks can be found again."""

    def num_cached(self, tokens: Sequence[int], salt: bytes) -> int:
        """How many leading `tokens` are in named blocks, all of these full."""

    def hold_cached(self, holder: Holder, tokens: Sequence[int], salt: bytes) -> int:
        """Let `holder`, which must hold nothing, reference those blocks; return their tokens."""

    def hold_named(self, holder: Holder, name: bytes) -> bool:
        """Let `holder`, which must hold nothing, reference the block of this name, if there is one.

        `name` is that of `baton.core.block_hash`.
        """

    def follow(self, follower: NameFollower) -> None:
        """Set the only follower of names."""

    def commit(self, holder: Holder, tokens: Sequence[int], num_computed: int, salt: bytes) -> None:
        """Name the blocks of `holder` filled by the first `num_computed` of its `tokens`.

        From now on they can be shared, and keep their contents when nobody references them.
        """

    def share(self, source: Holder, target: Holder, num_blocks: int) -> None:
        """Let `target` hold references to the first `num_blocks` blocks of `source` too.

        Blocks that `target` holds already (by position) are kept as they are.
        """

    def hand_over(self, source: Holder, target: Holder) -> None:
        """Move all references of `source` to `target`, which must hold none."""

    def release(self, holder: Holder) -> None:
        """Give up all references of `holder`. Nothing happens if it has none."""

    def table(self, holder: Holder) -> Sequence[int]:
        """The numbers of the holder's blocks, in token order. Live: copy it to keep it."""

    def tenants(self, holder: Holder) -> frozenset[str]:
        """On whose accounts the holder's blocks are: not always its own, where it shares them."""

    def view(self, holder: Holder, index: int, plane: int) -> memoryview:
        """The bytes of the holder's `index`-th block in `plane`, as its layout says; read-only."""

    def source(self, holder: Holder, start: int, stop: int, planes: range) -> BlockSource:
        """The holder's blocks from index `start` to before `stop`, all computed in these planes,
        which are alike."""

    def write(self, holder: Holder, index: int, plane: int, data: memoryview) -> None:
        """Copy `data` (as from `view`) into the holder's `index`-th block, its alone."""

    def clear_tail(self, holder: Holder, num_tokens: int, plane: int) -> None:
        """Zero what the block of the last of `num_tokens` has room for besides, in `plane`.

        It may still hold what an earlier owner of the block wrote there. A block that has a name is
        left alone: all of it was computed, and others may read it.
        """

    def clear(self, holder: Holder, start: int, plane: int) -> None:
        """Zero the holder's blocks from index `start` on, its alone, in `plane`."""

    def are_finite(self, holder: Holder, start: int, stop: int) -> bool:
        """Whether all that is in the holder's blocks from index `start` to before `stop` is finite;
        False where it is kept in few bits, which do not show it."""

    @property
    def head_runs(self) -> Sequence[range]:
        """Runs of KV heads, all heads in order, of which each has its bytes of a block together in
        this host's memory: one a tensor-parallel rank. Empty where they are not, as on a device."""

    def targets(self, holder: Holder, start: int) -> BlockTargets:
        """The holder's blocks from index `start` on, its alone, to be written."""

    def census(self) -> Census: ...
