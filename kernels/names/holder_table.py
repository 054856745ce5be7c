"""The holders of each block hash, for an index of caches.

    name -> the slots that hold it          one entry a name, however many hold it

A *slot* is a small number that stands for one holder. A set of slots is given as bits of an int.
Compiled if available (`kernels/cpu/source/names/holder_table.cpp`), else in dicts.
The compiled one keeps 40 bits of each name: of ten million names 45 pairs have the same, nearly all
of them on two replicas. Such a replica is taken to have a block that it lacks if it has all before
it, and one that has both blocks, to lack the one once the other is evicted: a prompt goes where one
block less of it is cached. Whoever makes such names on purpose harms a hint, and no block.
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
        """The address for compiled code; None: not compiled."""

    def __len__(self) -> int:
        """Names with a holder, or not swept yet."""

    def add(self, slot: int, names: BlockNames) -> int:
        """Add `slot` as a holder of `names`; return how many are new."""

    def remove(self, slot: int, names: BlockNames) -> int:
        """Remove `slot` as a holder of `names`; return how many it held."""

    def num_leading(self, names: BlockNames, live: int) -> array.array[int]:
        """Leading `names` that each slot in `live` holds, by slot; 0 for slots that are not.

        One more number than the largest of them is a 0, which stands for whoever has no slot.
        """

    def num_leading_of(self, prompts: Sequence[BlockNames], slot: int) -> array.array[int]:
        """Leading names of each prompt that `slot` holds."""

    def begin_sweep(self, dead: int) -> None:
        """From now on `sweep` takes these slots out of all names. Nothing is added to them."""

    def sweep(self, stretch: int) -> bool:
        """Go over about `stretch` more names; whether all have been gone over."""


def new_holder_table() -> HolderTable:
    found = library_without_torch()
    return ReferenceTable() if found is None else CompiledTable(found)


class ReferenceTable:
    """The definition, in dicts."""

    address = None

    def __init__(self) -> None:
        self._slots_by_name: dict[bytes, int] = {}
        self._equal_sets: dict[int, int] = {}
        """Equal sets of slots are one object, of which a million entries take no memory."""
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
        """Whether that is anything new."""
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
