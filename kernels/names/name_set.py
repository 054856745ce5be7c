"""A set of block hashes, with a search for the last of a prompt's hashes in it.

Compiled if the library is available (`kernels/cpu/source/names/name_set.cpp`), else a Python set.
"""

from __future__ import annotations

from typing import Protocol

from baton.core.block_hash import BlockNames
from baton.kernels.cpu.library import library_without_torch
from baton.kernels.names.name_set_cpu import CompiledSet

STRETCH = 64
"""Names searched per call."""


class NameSet(Protocol):
    def add(self, name: bytes) -> None: ...

    def remove(self, name: bytes) -> None:
        """Idempotent."""

    def last(self, names: BlockNames, start: int) -> int:
        """The index of the last of `names`, from `start` on, that is in the set; -1 if none is."""


def new_name_set() -> NameSet:
    found = library_without_torch()
    return ReferenceSet() if found is None else CompiledSet(found)


class ReferenceSet:
    """The definition."""

    def __init__(self) -> None:
        self._names: set[bytes] = set()

    def add(self, name: bytes) -> None:
        self._names.add(name)

    def remove(self, name: bytes) -> None:
        self._names.discard(name)

    def last(self, names: BlockNames, start: int) -> int:
        for end in range(len(names), start, -STRETCH):
            some = list(names[max(end - STRETCH, start) : end])
            if not self._names.isdisjoint(some):
                return (
                    end
                    - 1
                    - next(n for n, name in enumerate(reversed(some)) if name in self._names)
                )
        return -1
