"""Whether every KV block is accounted for. Pure: judges a census of the pool.

    total = quarantined + leased + live + cached + free

Each block counts once, by its first match in that order; a block that matches nothing is lost. It
goes over arrays of numbers, not block by block: a pool of a hundred million takes a few seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from baton.core.ids import TransferId
from baton.core.kv_pool import Census, Holder, HolderKind, Holdings

Blocks = NDArray[np.int32]


FREE, CACHED, LIVE, LEASED, QUARANTINED = (1 << bit for bit in range(5))
"""What a block is listed as: bits, and of several the highest counts."""
_BY_KIND = {
    HolderKind.REQUEST: LIVE,
    HolderKind.LEASE: LEASED,
    HolderKind.QUARANTINE: QUARANTINED,
}
NUM_LISTINGS = 2 * QUARANTINED
STRETCH = 1 << 20
"""Blocks that are looked at in one go, where what is made of them on the way takes memory."""
MAX_NAMED = 100
"""The most blocks that are named one by one of those that the same is wrong with; then it is said
how many more there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    num_blocks: int
    quarantined: int
    leased: int
    live: int
    cached: int
    free: int
    violations: tuple[str, ...]
    """Sentences; empty when every block is accounted for."""

    @property
    def num_counted(self) -> int:
        return self.quarantined + self.leased + self.live + self.cached + self.free


def audit(
    census: Census,
    known_requests: Collection[str],
    known_leases: Collection[TransferId],
) -> AuditReport:
    """`known_leases` are the transfers that sender and receiver still hold references for."""
    cached, free = _numbers(census.cached), _numbers(census.free)
    held = {kind: _numbers(list(_held_by(census, kind))) for kind in HolderKind}
    listed = np.zeros(census.num_blocks, np.uint8)
    for blocks, flag in ((cached, CACHED), (free, FREE)):
        _list(blocks, listed, flag)
    for kind, flag in _BY_KIND.items():
        _list(held[kind], listed, flag)
    known = {
        HolderKind.REQUEST: frozenset[str](known_requests),
        HolderKind.LEASE: frozenset[str](known_leases),
        HolderKind.QUARANTINE: frozenset[str](known_leases),
    }
    violations = [
        *_named(
            _where(listed == 0),
            lambda block: f"{block} is lost: neither referenced, cached nor free",
        ),
        *_double_entries(census, listed),
        *_listed_twice("free", free, listed, FREE),
        *_listed_twice("cached", cached, listed, CACHED),
        *_wrong_counts(census, np.concatenate([*held.values()])),
        *_not_there(census, (*held.values(), cached, free)),
        *(
            f"{holder.kind} {holder.id} is unknown to its owner and holds blocks {_some(blocks)}"
            for holder, blocks in census.tables.items()
            if blocks and holder.id not in known[holder.kind]
        ),
    ]
    num_by_listing = np.zeros(NUM_LISTINGS, np.intp)
    for start in range(0, census.num_blocks, STRETCH):
        num_by_listing += np.bincount(listed[start : start + STRETCH], minlength=NUM_LISTINGS)
    return AuditReport(
        num_blocks=census.num_blocks,
        **{name: _num_first(num_by_listing, flag) for name, flag in _TERMS.items()},
        violations=tuple(violations),
    )


def tally(holdings: Holdings) -> AuditReport:
    """The same numbers by the pool's own account, where nothing is wrong with it: that costs what
    is held, however large the pool is."""
    quarantined, leased, live = (
        set(_held_by(holdings, kind))
        for kind in (HolderKind.QUARANTINE, HolderKind.LEASE, HolderKind.REQUEST)
    )
    leased -= quarantined
    return AuditReport(
        num_blocks=holdings.num_blocks,
        quarantined=len(quarantined),
        leased=len(leased),
        live=len(live - leased - quarantined),
        cached=holdings.num_cached,
        free=holdings.num_free,
        violations=(),
    )


_TERMS = {
    "quarantined": QUARANTINED,
    "leased": LEASED,
    "live": LIVE,
    "cached": CACHED,
    "free": FREE,
}


def _num_first(num_by_listing: NDArray[np.intp], flag: int) -> int:
    """How many blocks are listed as this, and as nothing that comes before it."""
    return int(num_by_listing[flag : 2 * flag].sum())


def _where(is_so: NDArray[np.bool_]) -> Blocks:
    """Blocks that something is wrong with: few, or none."""
    return np.flatnonzero(is_so).astype(np.int32)


def _named(blocks: Blocks, violation: Callable[[int], str]) -> Iterator[str]:
    """What is wrong with each of some blocks, or with the first of them, and how many more."""
    for block in blocks[:MAX_NAMED].tolist():
        yield f"block {violation(block)}"
    if len(blocks) > MAX_NAMED:
        yield f"{len(blocks) - MAX_NAMED} more: the last, block {violation(int(blocks[-1]))}"


def _some(blocks: Sequence[int]) -> str:
    more = f" and {len(blocks) - MAX_NAMED} more" if len(blocks) > MAX_NAMED else ""
    return f"{list(blocks[:MAX_NAMED])}{more}"


def _numbers(blocks: Sequence[int]) -> Blocks:
    """An array of C's ints, as pools give it, is read where it lies."""
    return np.asarray(blocks, np.int32)


def _held_by(census: Census | Holdings, kind: HolderKind) -> Iterable[int]:
    return chain.from_iterable(
        blocks for holder, blocks in census.tables.items() if holder.kind is kind
    )


def _list(blocks: Blocks, listed: NDArray[np.uint8], flag: int) -> None:
    for start in range(0, len(blocks), STRETCH):
        there = _there(blocks[start : start + STRETCH], len(listed)).astype(np.intp)
        listed[there] |= flag


def _there(blocks: Blocks, num_blocks: int) -> Blocks:
    """The blocks that a pool of so many has."""
    is_there = blocks.view(np.uint32) < num_blocks  # no number below 0 is
    return blocks if is_there.all() else blocks[is_there]


def _double_entries(census: Census, listed: NDArray[np.uint8]) -> Iterator[str]:
    is_referenced = listed >= LIVE
    for name, flag in (("free", FREE), ("cached", CACHED)):
        yield from _named(
            _where(is_referenced & (listed & flag != 0)),
            partial(_as_referenced, census, name),
        )
    yield from _named(
        _where(listed & (CACHED | FREE) == (CACHED | FREE)),
        lambda block: f"{block} is both cached and free",
    )
    for holder, blocks in census.tables.items():
        for block, count in Counter(blocks).items():
            if count > 1:
                yield f"{holder.kind} {holder.id} lists block {block} {count} times"


def _as_referenced(census: Census, name: str, block: int) -> str:
    return f"{block} is both {name} and referenced by {_holders(census, block)}"


def _listed_twice(name: str, blocks: Blocks, listed: NDArray[np.uint8], flag: int) -> Iterator[str]:
    """Such a block would be given to two."""
    if np.count_nonzero(listed & flag) < len(blocks):
        numbers, counts = np.unique(blocks, return_counts=True)
        times = dict(zip(numbers[counts > 1].tolist(), counts[counts > 1].tolist(), strict=True))
        yield from _named(
            numbers[counts > 1],
            lambda block: f"{block} is {times[block]} times among those that are {name}",
        )


def _wrong_counts(census: Census, held: Blocks) -> Iterator[str]:
    counted = _numbers(census.ref_counts)
    num_listed = np.zeros(max(len(counted), census.num_blocks), np.int32)
    blocks, times = np.unique(_there(held, census.num_blocks), return_counts=True)
    num_listed[blocks] = times
    num_listed = num_listed[: len(counted)]
    yield from _named(
        _where(counted != num_listed),
        lambda block: (
            f"{block} counts {counted[block]} references but is listed {num_listed[block]} times"
        ),
    )
    if len(counted) != census.num_blocks:
        yield f"{len(counted)} reference counts for {census.num_blocks} blocks"


def _not_there(census: Census, every: Iterable[Blocks]) -> Iterator[str]:
    wrong = [blocks[blocks.view(np.uint32) >= census.num_blocks] for blocks in every]
    yield from _named(
        np.unique(np.concatenate(wrong)),
        lambda block: f"{block} does not exist: there are {census.num_blocks}",
    )


def _holders(census: Census, block: int) -> str:
    found: list[Holder] = [holder for holder, blocks in census.tables.items() if block in blocks]
    return ", ".join(f"{holder.kind} {holder.id}" for holder in found)
