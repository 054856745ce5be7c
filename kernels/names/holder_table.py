"""The holders of each block hash, for an index of caches.

    name -> the slots that hold it          one entry a name, however many hold it

A *slot* is a small number that stands for one holder. A set of slots is given as bits of an int.
Compiled if available (`kernels/cpu/source/names/holder_table.cpp`), else in dicts.

The compiled table keeps only 40 bits of each name: among ten million names there are about 45
collisions, nearly all between names on two replicas. A replica with one of the two names is taken
to hold the other as well, if it holds all blocks before it; a replica with both is taken to lack
the one once the other is evicted. The effect is that a prompt goes to a replica with one cached
block less. Collisions made on purpose can mislead routing, but never a block's content.
"""

from __future__ import annotations

import array
from collections.abc import Iterable, Sequence
from typing import Protocol

from baton.core.block_hash import BlockNames
from baton.kernels.cpu.library import library_without_torch
from baton.kernels.names.holder_table_cpu import CompiledTable

MAX_EQUAL_SETS = 10_000


class HolderTable(Protocol):
    @property
    def address(self) -> int | None:
        """The address for compiled code; None if not compiled."""

    def __len__(self) -> int:
        """Names with a holder, and names that `sweep` has not removed yet."""

    def add(self, slot: int, names: BlockNames) -> int:
        """Add `slot` as a holder of `names`; return how many are new."""

    def remove(self, slot: int, names: BlockNames) -> int:
        """Remove `slot` as a holder of `names`; return how many it held."""

    def num_leading(self, names: BlockNames, live: int) -> array.array[int]:
        """Number of leading `names` that each slot in `live` holds, by slot; 0 for other slots.

        The array has one more element than the largest slot, a 0, for holders without a slot.
        """

    def num_leading_of(self, prompts: Sequence[BlockNames], slot: int) -> array.array[int]:
        """Number of leading names of each prompt that `slot` holds."""

    def begin_sweep(self, dead: int) -> None:
        """Let `sweep` remove these slots from all names. Nothing may be added to them any more."""

    def sweep(self, stretch: int) -> bool:
        """Process about `stretch` more names; returns whether all have been processed."""


def new_holder_table() -> HolderTable:
    found = library_without_torch()
    return ReferenceTable() if found is None else CompiledTable(found)


class ReferenceTable:
    """The definition, in dicts."""

    address = None

    def __init__(self) -> None:
        self._slots_by_name: dict[bytes, int] = {}
        self._equal_sets: dict[int, int] = {}
        """Interned sets of slots, so that equal sets take memory once."""
        self._sweeping = 0
        self._unswept: list[bytes] = []

    def __len__(self) -> int:
        return len(self._slots_by_name)

    def add(self, slot: int, names: BlockNames) -> int:
        return sum(self._put(name, self._slots(name) | 1 << slot) for name in names)

    def remove(self, slot: int, names: BlockNames) -> int:
        return sum(self._put(name, self._slots(name) & ~(1 << slot)) for name in names)

    def num_leading(self, names: BlockNames, live: int) -> array.array[int]:
        depths = array.array("I", bytes(4 * (live.bit_length() + 1)))
        for depth, name in enumerate(names):
            still = live & self._slots(name)
            for slot in _members(live & ~still):
                depths[slot] = depth
            live = still
            if not live:
                return depths
        for slot in _members(live):
            depths[slot] = len(names)
        return depths

    def num_leading_of(self, prompts: Sequence[BlockNames], slot: int) -> array.array[int]:
        return array.array("I", [self.num_leading(names, 1 << slot)[slot] for names in prompts])

    def begin_sweep(self, dead: int) -> None:
        self._sweeping, self._unswept = dead, list(self._slots_by_name)

    def sweep(self, stretch: int) -> bool:
        names, self._unswept[-stretch:] = self._unswept[-stretch:], []
        for name in names:
            self._put(name, self._slots(name) & ~self._sweeping)
        return not self._unswept

    def _slots(self, name: bytes) -> int:
        return self._slots_by_name.get(name, 0)

    def _put(self, name: bytes, slots: int) -> bool:
        """Returns whether this adds a holder."""
        if slots == self._slots(name):
            return False
        if not slots:
            del self._slots_by_name[name]
            return True
        if len(self._equal_sets) > MAX_EQUAL_SETS:
            self._equal_sets.clear()
        self._slots_by_name[name] = self._equal_sets.setdefault(slots, slots)
        return True


def _members(slots: int) -> Iterable[int]:
    while slots:
        slot = slots.bit_length() - 1
        slots ^= 1 << slot
        yield slot
