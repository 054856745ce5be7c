"""The tier in this process's memory: the fastest, and gone with the process.

On an orderly end the stack moves the most recently used blocks to the next tier (`recent`).

A record that is being read stays whole when it is evicted meanwhile: it is released, not reused.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from baton.kv_transfer.tiers.media.base import TierStats
from baton.kv_transfer.tiers.media.lru import Lru
from baton.kv_transfer.tiers.media.record import BlockRecord, RecordFormat


class HostTier:
    name = "host"
    is_slow = False

    def __init__(self, format_: RecordFormat, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.stats = TierStats()
        self._format = format_
        self._records: dict[bytes, BlockRecord] = {}
        self._lru: Lru[bytes] = Lru()
        self._lock = threading.Lock()

    @property
    def num_bytes(self) -> int:
        return self._lru.num_bytes

    @property
    def num_blocks(self) -> int:
        return len(self._lru)

    def open(self) -> None:
        """Nothing is there from before."""

    def holds(self, name: bytes) -> bool:
        return name in self._records

    def num_leading(self, names: Sequence[bytes]) -> int:
        for index, name in enumerate(names):
            if name not in self._records:
                return index
        return len(names)

    def read(self, names: Sequence[bytes]) -> list[BlockRecord]:
        found: list[BlockRecord] = []
        with self._lock:
            for name in names:
                record = self._records.get(name)
                if record is None:
                    break
                self._lru.touch(name)
                found.append(record)
        return found

    def victims(self) -> list[bytes]:
        with self._lock:
            return self._lru.victims(self._format.record_bytes, self.capacity_bytes)

    def put(self, record: BlockRecord) -> bool:
        with self._lock:
            if record.name in self._records:
                self._lru.touch(record.name)
                return True
            if self._lru.num_bytes + record.num_bytes > self.capacity_bytes:
                return False
            self._records[record.name] = record
            self._lru.add(record.name, record.num_bytes)
        self.stats.count(num_written=1)
        return True

    def remove(self, name: bytes) -> None:
        with self._lock:
            self._records.pop(name, None)
            self._lru.remove(name)

    def recent(self) -> list[BlockRecord]:
        with self._lock:
            return [self._records[name] for name in reversed(self._lru)]

    def close(self) -> None:
        with self._lock:
            self._records.clear()
            self._lru.clear()
