"""Which replica has which blocks of KV, according to the replicas' own events.

    table       block name -> the slots of the replicas that have it            1 entry a block
    expected    prompts on their way to a replica (`expected_blocks.py`)

A replica's *slot* is its number in the table. A snapshot fills a new slot while the old one still
answers, and then takes its place; a replica that leaves loses its slot. Either way the old slot is
dead at once, because it is masked out of every answer, and it is swept out of the table bit by bit,
a part with each call that changes something. So no call takes long, however many blocks there are.

A look-up goes over the names one by one, although a replica that has a block nearly always has all
blocks before it: two prompts that are computed side by side leave a cache with later blocks of one
of them and, once the other's are evicted, without the first. Looking up 8,192 names takes no longer
than fetching as many lines of memory, all of which are prefetched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np

from baton.core.block_hash import BlockNames
from baton.core.ids import Epoch
from baton.core.kv_events import KvChange, KvEvent, KvEvents
from baton.kernels.names.holder_table import HolderTable, new_holder_table
from baton.router.cache.expected_blocks import Expected, ExpectedBlocks
from baton.router.table.numbering import Numbering, PrefixOverlaps

STRETCH = 4096
"""Names that are swept in one go: a tenth of a millisecond, or one where nothing is compiled."""


CacheVersion: TypeAlias = tuple[int, int]


class CachedBlocks(NamedTuple):
    """Where compiled code looks up the blocks of one replica; valid until the index changes."""

    table: int
    """The holder table's address."""
    slot: int


class KvGap(Exception):
    """Events were missed: only a snapshot can show what the replica has."""


@dataclass(slots=True)
class _Known:
    """The known cache of one replica."""

    slot: int
    next_sequence: int
    num_blocks: int = 0


@dataclass(slots=True)
class _Loading:
    """A snapshot of which parts are missing."""

    known: _Known
    next_part: int = 0


class KvIndex:
    def __init__(self, table: HolderTable | None = None, *, stretch: int = STRETCH) -> None:
        self._table = table if table is not None else new_holder_table()
        self._stretch = stretch
        self._known_by_epoch: dict[Epoch, _Known] = {}
        self._loading_by_epoch: dict[Epoch, _Loading] = {}
        self._slots = Numbering()
        """Slots of the live replicas, by epoch."""
        self._num_slots = 0
        self._free_slots: list[int] = []
        self._live = 0
        """A bit for each of them."""
        self._dead = 0
        """Bits of slots to be swept; some names may still have them."""
        self._sweeping = 0
        """Bits of the dead slots that the sweep under way takes out."""
        self._expected = ExpectedBlocks()

    def __len__(self) -> int:
        """Names in memory, including those that await the sweep."""
        return len(self._table)

    def num_blocks(self, epoch: Epoch) -> int:
        known = self._known_by_epoch.get(epoch)
        return known.num_blocks if known is not None else 0

    def version(self, epoch: Epoch) -> CacheVersion | None:
        """Another one after each change of its cache; None if nothing is known of it."""
        known = self._known_by_epoch.get(epoch)
        return None if known is None else (known.slot, known.next_sequence)

    # Reports of replicas.

    def apply(self, epoch: Epoch, events: KvEvents) -> None:
        """Follow `epoch` from where it is known. Raises KvGap, with nothing changed, if it is not.

        Events that are known already are passed over. Until a snapshot is complete, what was known
        before holds.
        """
        if events.is_snapshot:
            self._load(epoch, events)
        else:
            self._follow(epoch, events)
        self._sweep()

    def break_off(self, epoch: Epoch) -> None:
        """The rest of a snapshot, if one has begun, will not come."""
        loading = self._loading_by_epoch.pop(epoch, None)
        if loading is not None:
            self._dead |= 1 << loading.known.slot

    def forget(self, epoch: Epoch) -> None:
        """A replica is gone, and its cache with it."""
        self._expected.forget(epoch)
        self.break_off(epoch)
        known = self._known_by_epoch.pop(epoch, None)
        if known is not None:
            self._slots.take(epoch)
            self._retire(known.slot)
        self._sweep()

    # Placements of this gateway.

    def expect(self, names: Sequence[bytes], epoch: Epoch) -> Expected:
        """Count the blocks as on their way to `epoch`, until given back to `release`."""
        return self._expected.add(BlockNames.of(names), epoch)

    def release(self, expected: Expected) -> None:
        """Safe to repeat."""
        self._expected.remove(expected)

    # Queries of placements. `names` are chained: names that agree at one depth agree before it.

    def cached(self, names: Sequence[bytes]) -> PrefixOverlaps:
        """How many leading blocks each replica has."""
        found = self._table.num_leading(BlockNames.of(names), self._live)
        return PrefixOverlaps(self._slots, np.frombuffer(found, np.uint32))

    def expected(self, names: Sequence[bytes]) -> PrefixOverlaps:
        """Leading blocks that are on their way to each replica, whether or not they have
        arrived."""
        return self._expected.overlaps(BlockNames.of(names))

    def num_cached_blocks(self, names: Sequence[bytes]) -> dict[Epoch, int]:
        """Leading blocks that each replica has cached. Replicas with none are left out."""
        return self.cached(names).by_epoch()

    def blocks_of(self, epoch: Epoch) -> CachedBlocks | None:
        """Where compiled code finds the names of one replica; None without compiled code, or before
        its first report."""
        table, known = self._table.address, self._known_by_epoch.get(epoch)
        return None if table is None or known is None else CachedBlocks(table, known.slot)

    def num_cached_blocks_of(self, epoch: Epoch, prompts: Sequence[BlockNames]) -> Sequence[int]:
        """How many leading blocks of each prompt one replica has."""
        known = self._known_by_epoch.get(epoch)
        if known is None:
            return [0] * len(prompts)
        return self._table.num_leading_of(prompts, known.slot)

    def _follow(self, epoch: Epoch, events: KvEvents) -> None:
        known = self._known_by_epoch.get(epoch)
        if known is None or events.first_sequence > known.next_sequence:
            expected = known.next_sequence if known is not None else "a snapshot"
            raise KvGap(f"event {events.first_sequence} came instead of {expected}")
        for event in events.events[known.next_sequence - events.first_sequence :]:
            self._apply_event(epoch, known, event)
            known.next_sequence += 1

    def _apply_event(self, epoch: Epoch, known: _Known, event: KvEvent) -> None:
        match event.change:
            case KvChange.STORED:
                known.num_blocks += self._table.add(known.slot, BlockNames(event.names))
            case KvChange.EVICTED:
                known.num_blocks -= self._table.remove(known.slot, BlockNames(event.names))
            case KvChange.CLEARED:
                self._retire(known.slot)
                known.slot, known.num_blocks = self._take_slot(), 0
                self._activate(epoch, known)

    def _load(self, epoch: Epoch, snapshot: KvEvents) -> None:
        if not snapshot.part:
            self.break_off(epoch)
            known = _Known(self._take_slot(), snapshot.next_sequence)
            self._loading_by_epoch[epoch] = _Loading(known)
        loading = self._loading_by_epoch.get(epoch)
        if loading is None or snapshot.part > loading.next_part:
            expected = loading.next_part if loading is not None else "the first"
            raise KvGap(f"part {snapshot.part} of a snapshot came instead of {expected}")
        if snapshot.part < loading.next_part:
            return
        loading.next_part += 1
        for event in snapshot.events:
            names = BlockNames(event.names)
            loading.known.num_blocks += self._table.add(loading.known.slot, names)
        if not snapshot.has_more:
            self._complete(epoch, self._loading_by_epoch.pop(epoch).known)

    def _complete(self, epoch: Epoch, loaded: _Known) -> None:
        before = self._known_by_epoch.get(epoch)
        if before is not None:
            self._retire(before.slot)
        self._activate(epoch, loaded)

    # Slots: free -> taken -> live -> dead -> swept, hence free again.

    def _take_slot(self) -> int:
        if self._free_slots:
            return self._free_slots.pop()
        self._num_slots += 1
        return self._num_slots - 1

    def _activate(self, epoch: Epoch, known: _Known) -> None:
        self._known_by_epoch[epoch] = known
        self._slots.give(epoch, known.slot)
        self._live |= 1 << known.slot

    def _retire(self, slot: int) -> None:
        self._live &= ~(1 << slot)
        self._dead |= 1 << slot

    def _sweep(self) -> None:
        """Take dead slots out of the next stretch of names."""
        if not self._sweeping:
            if not self._dead:
                return
            # Later names cannot have these slots: a dead slot is not reused.
            self._sweeping = self._dead
            self._table.begin_sweep(self._sweeping)
        if self._table.sweep(self._stretch):
            self._dead &= ~self._sweeping
            self._free_slots += _members(self._sweeping)
            self._sweeping = 0


def _members(slots: int) -> list[int]:
    return [slot for slot in range(slots.bit_length()) if slots >> slot & 1]
