"""The interface of a tier: a bounded store of blocks that evicts the least recently used.

A tier is synchronous and may be called from any thread. It never raises: a block that it cannot
read it does not hold, a block that it cannot write it refuses, and both are counted. The caller
makes room: `victims` names the blocks that have to go first, so that they can be moved on before
`remove`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from baton.kv_transfer.tiers.media.record import BlockRecord


@dataclass(slots=True, kw_only=True)
class TierStats:
    """Sums over a tier's life; changed under its own lock."""

    num_hits: int = 0
    """Blocks read."""
    num_misses: int = 0
    """Lookups of a prefix that ended at a block which is not here."""
    num_written: int = 0
    num_evicted: int = 0
    num_dropped: int = 0
    """Blocks that were not written: too many were waiting, or there was no room."""
    num_corrupt: int = 0
    """Records that were found damaged, and removed."""
    num_errors: int = 0
    """Operations that the system refused: no space, no permission, no connection."""
    read_s: float = 0.0
    write_s: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def count(self, **changes: float) -> None:
        """`count(num_hits=2)` adds two hits."""
        with self._lock:
            for name, change in changes.items():
                setattr(self, name, getattr(self, name) + change)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            self.count(**{name: time.perf_counter() - started})


class Tier(Protocol):
    @property
    def name(self) -> str:
        """The tier's name in receipts and metrics: "host", "disk", "store"."""

    @property
    def is_slow(self) -> bool:
        """Whether it does I/O: what is written to it waits in a queue."""

    @property
    def capacity_bytes(self) -> int | None:
        """None: unbounded."""

    @property
    def num_bytes(self) -> int: ...

    @property
    def num_blocks(self) -> int: ...

    @property
    def stats(self) -> TierStats: ...

    def open(self) -> None:
        """Look for what is there from before. Until this is done the tier is empty."""

    def holds(self, name: bytes) -> bool:
        """Whether a block is here, as far as is known without asking a remote system."""

    def num_leading(self, names: Sequence[bytes]) -> int:
        """How many of `names`, from the first on, are here."""

    def read(self, names: Sequence[bytes]) -> list[BlockRecord]:
        """The records of as many of `names`, from the first on, as are here and whole."""

    def victims(self) -> list[bytes]:
        """The least recently used, which must be removed before another record fits."""

    def put(self, record: BlockRecord) -> bool:
        """False if it was refused. Nothing happens to a record that is here already."""

    def remove(self, name: bytes) -> None:
        """Nothing happens if it is not here."""

    def recent(self) -> list[BlockRecord]:
        """What ends with this process, most recently used first."""

    def close(self) -> None: ...
