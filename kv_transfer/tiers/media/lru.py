"""How many bytes are kept under which key, least recently used first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, TypeVar

K = TypeVar("K")


class Lru(Generic[K]):
    """Pure bookkeeping; not thread-safe."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._sizes: OrderedDict[K, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sizes)

    def __reversed__(self) -> Iterator[K]:
        """Most recently used first."""
        return reversed(self._sizes)

    def __contains__(self, key: K) -> bool:
        return key in self._sizes

    def add(self, key: K, num_bytes: int) -> None:
        """As the most recently used. A key that is there already gets the new size."""
        self.remove(key)
        self._sizes[key] = num_bytes
        self.num_bytes += num_bytes

    def touch(self, key: K) -> None:
        if key in self._sizes:
            self._sizes.move_to_end(key)

    def remove(self, key: K) -> bool:
        """Whether it was there."""
        num_bytes = self._sizes.pop(key, None)
        self.num_bytes -= num_bytes or 0
        return num_bytes is not None

    def clear(self) -> None:
        self._sizes.clear()
        self.num_bytes = 0

    def victims(self, num_bytes: int, capacity_bytes: int) -> list[K]:
        """What must go, oldest first, so that `num_bytes` more fit; nothing if they never can."""
        if num_bytes > capacity_bytes:
            return []
        excess = self.num_bytes + num_bytes - capacity_bytes
        going: list[K] = []
        for key, size in self._sizes.items():
            if excess <= 0:
                break
            going.append(key)
            excess -= size
        return going
