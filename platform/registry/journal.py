"""A versioned map: values by key, and the changes after any remembered version."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

MAX_GONE = 4096
"""Removed keys that are remembered: far more than are removed between two queries."""


class Journal(Generic[K, V]):
    """Versions never fall from one call to the next."""

    def __init__(self, max_gone: int = MAX_GONE) -> None:
        self._max_gone = max_gone
        self._value_by_key: dict[K, V] = {}
        self._changed: dict[K, int] = {}
        """The version of the last change of each, ascending."""
        self._gone: dict[K, int] = {}
        """The version with which each went, ascending."""
        self._forgotten = -1

    def __len__(self) -> int:
        return len(self._value_by_key)

    def __contains__(self, key: K) -> bool:
        return key in self._value_by_key

    def __iter__(self) -> Iterator[V]:
        """The values in the order in which they came."""
        return iter(self._value_by_key.values())

    def get(self, key: K) -> V | None:
        return self._value_by_key.get(key)

    def put(self, key: K, value: V, version: int) -> None:
        self._value_by_key[key] = value
        self._gone.pop(key, None)
        self._changed.pop(key, None)  # it goes to the end
        self._changed[key] = version

    def pop(self, key: K, version: int) -> V | None:
        """None if it is not there."""
        if key not in self._value_by_key:
            return None
        del self._changed[key]
        self._gone[key] = version
        if len(self._gone) > self._max_gone:
            self._forgotten = self._gone.pop(next(iter(self._gone)))
        return self._value_by_key.pop(key)

    def remembers(self, version: int) -> bool:
        """Whether all removals since then are remembered."""
        return version >= self._forgotten

    def changed(self, since: int) -> tuple[V, ...]:
        """Values that are new or have changed since version `since`."""
        return tuple(self._value_by_key[key] for key in _later(self._changed, since))

    def gone(self, since: int) -> tuple[K, ...]:
        return _later(self._gone, since)


def _later(versions: dict[K, int], since: int) -> tuple[K, ...]:
    """The keys behind the last one whose version is not later; they ascend."""
    found: list[K] = []
    for key in reversed(versions):
        if versions[key] <= since:
            break
        found.append(key)
    return tuple(reversed(found))
