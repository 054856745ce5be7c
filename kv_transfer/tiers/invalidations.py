"""Removes wrong blocks from all tiers, also while they are being copied from one tier to another.

    copy          watch { read --> put --> name invalidated meanwhile? --> invalidate again }
    invalidate    add to every watch, old or new --> remove from every tier --> done

In this order no interleaving leaves an invalid block behind: a copy that does not see an
invalidation either ended before it, and is removed with the rest, or began after it, and finds
nothing. A block that was put too late may have been copied on, so it is invalidated again instead
of being removed from one tier only.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager


class Invalidations:
    """From any thread."""

    def __init__(self, remove: Callable[[bytes], None]) -> None:
        """`remove` takes a block from every tier: no look-up finds it from then on."""
        self._remove = remove
        self._watches: list[set[bytes]] = []
        self._under_way: list[bytes] = []
        self._lock = threading.Lock()

    @contextmanager
    def watch(self) -> Iterator[Set[bytes]]:
        """The names invalidated since the context was entered, or being invalidated then. The set
        grows while the context lasts."""
        with self._lock:
            names = set(self._under_way)
            self._watches.append(names)
        try:
            yield names
        finally:
            with self._lock:
                self._watches = [other for other in self._watches if other is not names]

    def invalidate(self, name: bytes) -> None:
        with self._lock:
            self._under_way.append(name)
            for names in self._watches:
                names.add(name)
        try:
            self._remove(name)
        finally:
            with self._lock:
                self._under_way.remove(name)
