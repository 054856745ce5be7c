"""A tier with injected faults (core/chaos.py): a slow, full, forgetful or lying disk.

Nothing here knows how the stack copes: whatever it does to records, a disk could do.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from baton.core.chaos import Chaos, ChaosRule, Fault
from baton.kv_transfer.tiers.media.base import Tier, TierStats
from baton.kv_transfer.tiers.media.record import BlockRecord


class ChaoticTier:
    def __init__(self, inner: Tier, chaos: Chaos) -> None:
        self._inner = inner
        self._chaos = chaos
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def is_slow(self) -> bool:
        return self._inner.is_slow

    @property
    def capacity_bytes(self) -> int | None:
        return self._inner.capacity_bytes

    @property
    def num_bytes(self) -> int:
        return self._inner.num_bytes

    @property
    def num_blocks(self) -> int:
        return self._inner.num_blocks

    @property
    def stats(self) -> TierStats:
        return self._inner.stats

    def open(self) -> None:
        self._inner.open()

    def holds(self, name: bytes) -> bool:
        return self._inner.holds(name)

    def num_leading(self, names: Sequence[bytes]) -> int:
        return self._inner.num_leading(names)

    def read(self, names: Sequence[bytes]) -> list[BlockRecord]:
        rule = self._draw("tier.read")
        if rule is not None and rule.fault is Fault.DROP:
            return []
        records = self._inner.read(names)
        if rule is not None and records:
            records[-1] = self._harmed(records[-1], rule)
        return records

    def victims(self) -> list[bytes]:
        return self._inner.victims()

    def put(self, record: BlockRecord) -> bool:
        rule = self._draw("tier.write")
        if rule is not None and rule.fault is Fault.DROP:
            return True
        if rule is not None and rule.fault is Fault.FULL:
            self.stats.count(num_errors=1)
            return False
        return self._inner.put(record if rule is None else self._harmed(record, rule))

    def remove(self, name: bytes) -> None:
        self._inner.remove(name)

    def recent(self) -> list[BlockRecord]:
        return self._inner.recent()

    def close(self) -> None:
        self._inner.close()

    def _draw(self, point: str) -> ChaosRule | None:
        with self._lock:
            rule = self._chaos.draw(point)
        if rule is not None and rule.fault is Fault.DELAY and self.is_slow:
            time.sleep(rule.delay_s)
        return rule

    def _harmed(self, record: BlockRecord, rule: ChaosRule) -> BlockRecord:
        """Another record: the caller's may be in another tier as well."""
        payload = bytearray(record.payload)
        if rule.fault is Fault.CORRUPT:
            with self._lock:
                bit = self._chaos.pick(8 * len(payload))
            payload[bit // 8] ^= 1 << bit % 8
        elif rule.fault is Fault.TRUNCATE:
            del payload[-1]
        else:
            return record
        return BlockRecord(record.name, record.checksums, memoryview(payload).toreadonly())
