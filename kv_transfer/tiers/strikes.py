"""Removes wrong blocks from all tiers, also while they are on their way from one tier to another.

    copy      watch { read --> put --> named in the watch? --> struck again }
    strike    told to every watch, old or new --> removed from every tier --> told no more

In this order no interleaving leaves a struck block behind: a copy that does not hear of a strike
either ended before it, and is removed with the rest, or began after it, and finds nothing. A block
that was put too late may have been copied on: that is why it is struck again, and not only removed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager


class Strikes:
    """From any thread."""

    def __init__(self, remove: Callable[[bytes], None]) -> None:
        """`remove` takes a block from every tier: no look-up finds it from then on."""
        self._remove = remove
        self._watches: list[set[bytes]] = []
        self._under_way: list[bytes] = []
        self._lock = threading.Lock()

    @contextmanager
    def watch(self) -> Iterator[Set[bytes]]:
        """The names struck since the context was entered, or just being struck, live."""
        with self._lock:
            names = set(self._under_way)
            self._watches.append(names)
        try:
            yield names
        finally:
            with self._lock:
                self._watches = [other for other in self._watches if other is not names]

    def strike(self, name: bytes) -> None:
        with self._lock:
            self._under_way.append(name)
            for names in self._watches:
                names.add(name)
        try:
            self._remove(name)
        finally:
            with self._lock:
                self._under_way.remove(name)
