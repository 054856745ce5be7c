"""Whether every KV block is accounted for. Pure: judges a census of the pool.

    total = quarantined + leased + live + cached + free

Each block counts once, by its first match in that order; a block that matches nothing is lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from baton.core.ids import TransferId
from baton.core.kv_pool import Census, Holder, HolderKind


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    num_blocks: int
    quarantined: int
    leased: int
    live: int
    cached: int
    free: int
    violations: tuple[str, ...]
    """One sentence each; empty when every block is accounted for."""

    @property
    def num_counted(self) -> int:
        return self.quarantined + self.leased + self.live + self.cached + self.free


def audit(
    census: Census,
    known_requests: Collection[str],
    known_leases: Collection[TransferId],
) -> AuditReport:
    """`known_leases` are the transfers that sender and receiver still hold references for."""
    held = {kind: _held_by(census, kind) for kind in HolderKind}
    quarantined = held[HolderKind.QUARANTINE]
    leased = held[HolderKind.LEASE] - quarantined
    live = held[HolderKind.REQUEST] - leased - quarantined
    referenced = quarantined | leased | live
    cached = census.cached - referenced
    free = census.free - referenced - cached
    lost = set(range(census.num_blocks)) - referenced - cached - free
    known = {
        HolderKind.REQUEST: frozenset[str](known_requests),
        HolderKind.LEASE: frozenset[str](known_leases),
        HolderKind.QUARANTINE: frozenset[str](known_leases),
    }
    violations = [
        *(f"block {block} is lost: neither referenced, cached nor free" for block in sorted(lost)),
        *_double_entries(census, referenced),
        *_wrong_counts(census),
        *(
            f"{holder.kind} {holder.id} is unknown to its owner and holds blocks {list(blocks)}"
            for holder, blocks in census.tables.items()
            if blocks and holder.id not in known[holder.kind]
        ),
    ]
    return AuditReport(
        num_blocks=census.num_blocks,
        quarantined=len(quarantined),
        leased=len(leased),
        live=len(live),
        cached=len(cached),
        free=len(free),
        violations=tuple(violations),
    )


def _held_by(census: Census, kind: HolderKind) -> set[int]:
    tables = (blocks for holder, blocks in census.tables.items() if holder.kind is kind)
    return {block for blocks in tables for block in blocks}


def _double_entries(census: Census, referenced: set[int]) -> Iterator[str]:
    for block in sorted(census.free & referenced):
        yield f"block {block} is both free and referenced by {_holders(census, block)}"
    for block in sorted(census.cached & referenced):
        yield f"block {block} is both cached and referenced by {_holders(census, block)}"
    for block in sorted(census.cached & census.free):
        yield f"block {block} is both cached and free"
    for holder, blocks in census.tables.items():
        for block, count in Counter(blocks).items():
            if count > 1:
                yield f"{holder.kind} {holder.id} lists block {block} {count} times"


def _wrong_counts(census: Census) -> Iterator[str]:
    listings = Counter(block for blocks in census.tables.values() for block in blocks)
    for block, ref_count in enumerate(census.ref_counts):
        num_listed = listings[block]
        if ref_count != num_listed:
            yield f"block {block} counts {ref_count} references but is listed {num_listed} times"
    named = listings.keys() | census.cached | census.free
    for block in sorted(block for block in named if not 0 <= block < census.num_blocks):
        yield f"block {block} does not exist: there are {census.num_blocks}"
    if len(census.ref_counts) != census.num_blocks:
        yield f"{len(census.ref_counts)} reference counts for {census.num_blocks} blocks"


def _holders(census: Census, block: int) -> str:
    found: list[Holder] = [holder for holder, blocks in census.tables.items() if block in blocks]
    return ", ".join(f"{holder.kind} {holder.id}" for holder in found)
