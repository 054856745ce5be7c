"""What is found to be wrong while it is on its way from one tier to another.

    copy      watch --> read --> put --> named in the watch? --> removed again
    strike    tell every watch --> remove from every tier

In this order no interleaving leaves a struck block behind: a strike that a copy does not hear of
comes after it, and removes what it put.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Set
from contextlib import contextmanager


class Strikes:
    """From any thread."""

    def __init__(self) -> None:
        self._watches: list[set[bytes]] = []
        self._lock = threading.Lock()

    @contextmanager
    def watch(self) -> Iterator[Set[bytes]]:
        """The names struck since the context was entered, live."""
        names: set[bytes] = set()
        with self._lock:
            self._watches.append(names)
        try:
            yield names
        finally:
            with self._lock:
                self._watches = [other for other in self._watches if other is not names]

    def strike(self, name: bytes) -> None:
        with self._lock:
            for names in self._watches:
                names.add(name)
