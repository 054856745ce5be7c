"""One tier with its threads: writes wait in a bounded queue, reads are awaited.

    put --> waiting (found by name already) --writer thread--> victims out, record in
                `--> too many wait: dropped and counted
    read, num_leading: at once for memory, on reader threads for tiers with I/O

A tier that hangs takes its own threads with it and no more: once all of its readers are stuck it
counts as empty until one comes back.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import takewhile
from typing import TypeVar

from baton.kv_transfer.tiers.invalidations import Invalidations
from baton.kv_transfer.tiers.media.base import Tier
from baton.kv_transfer.tiers.media.record import BlockRecord

log = logging.getLogger(__name__)

T = TypeVar("T")

NUM_READERS = 4


class Level:
    def __init__(
        self, tier: Tier, below: Level | None, max_waiting: int, invalidations: Invalidations
    ) -> None:
        self.tier = tier
        self._below = below
        self._invalidations = invalidations
        self._max_waiting = max_waiting
        self._waiting: OrderedDict[bytes, BlockRecord] = OrderedDict()
        self._removing: Counter[bytes] = Counter()
        """Removals of what was discarded that are yet to come: until then it is not there for
        anybody, though the tier has it."""
        self._written: bytes | None = None
        """The name of the record that is being written."""
        self._is_spoilt = False
        """Whether that record was discarded meanwhile: it is removed once it is written."""
        self._changed = threading.Condition()
        self._writing = threading.Lock()
        self._is_closing = False
        self._num_busy = 0
        self._readers: ThreadPoolExecutor | None = None
        self._writer: threading.Thread | None = None
        if tier.is_slow:
            prefix = f"baton-{tier.name}"
            self._readers = ThreadPoolExecutor(NUM_READERS, thread_name_prefix=f"{prefix}-read")
            self._writer = threading.Thread(target=self._main, name=f"{prefix}-write", daemon=True)

    def start(self) -> None:
        if self._writer is not None:
            self._writer.start()
        else:
            self.tier.open()

    def close(self, timeout_s: float) -> None:
        """What waits is written, as far as the time allows; the rest is dropped."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._writer is not None and self._writer.ident is not None:
            self._writer.join(timeout_s)
        with self._changed:
            self.tier.stats.count(num_dropped=len(self._waiting))
            self._waiting.clear()
            self._changed.notify_all()
        if self._readers is not None:
            self._readers.shutdown(wait=False, cancel_futures=True)
        self.tier.close()

    @property
    def num_waiting(self) -> int:
        """Blocks that are not written yet."""
        return len(self._waiting)

    def holds(self, name: bytes) -> bool:
        return name in self._waiting or (not self._is_hidden(name) and self.tier.holds(name))

    def put(self, record: BlockRecord) -> None:
        """From any thread; never waits for I/O."""
        if not self.tier.is_slow:
            self._store(record)
            return
        with self._changed:
            if self.holds(record.name):
                return
            if self._is_closing or len(self._waiting) >= self._max_waiting:
                self.tier.stats.count(num_dropped=1)
                return
            self._waiting[record.name] = record
            self._changed.notify_all()

    def put_soon(self, record: BlockRecord, deadline: float) -> bool:
        """Like `put`, but wait for room; False if there was none by then (`time.monotonic`)."""
        with self._changed:
            has_room = self._changed.wait_for(
                lambda: len(self._waiting) < self._max_waiting, deadline - time.monotonic()
            )
        if has_room:
            self.put(record)
        return has_room

    def discard(self, name: bytes) -> None:
        """Forget it, in the background where that is I/O; also if it is just being written."""
        with self._changed:
            self._waiting.pop(name, None)
            self._is_spoilt |= name == self._written
            if self._readers is not None and not self._is_closing:
                self._removing[name] += 1
                self._readers.submit(self._remove, name)
                return
        self.tier.remove(name)

    async def num_leading(self, names: Sequence[bytes]) -> int:
        """How many of `names`, from the first on, are here."""
        num_waiting = self._num_leading_waiting(names)
        if num_waiting:
            return num_waiting
        names = self._before_removed(names)
        return await self._on_readers(partial(self.tier.num_leading, names), otherwise=0)

    async def read(self, names: Sequence[bytes]) -> list[BlockRecord]:
        """The records of as many of `names`, from the first on, as are here and whole."""
        waiting = self._read_waiting(names)
        if waiting:
            return waiting
        nothing: list[BlockRecord] = []
        names = self._before_removed(names)
        found = await self._on_readers(partial(self.tier.read, names), otherwise=nothing)
        self.tier.stats.count(num_hits=len(found))
        return found

    def _num_leading_waiting(self, names: Sequence[bytes]) -> int:
        return next((i for i, name in enumerate(names) if name not in self._waiting), len(names))

    def _read_waiting(self, names: Sequence[bytes]) -> list[BlockRecord]:
        found: list[BlockRecord] = []
        with self._changed:
            for name in names:
                record = self._waiting.get(name)
                if record is None:
                    break
                found.append(record)
        return found

    def _before_removed(self, names: Sequence[bytes]) -> Sequence[bytes]:
        with self._changed:
            if not self._removing and not self._is_spoilt:
                return names
            return list(takewhile(lambda name: not self._is_hidden(name), names))

    def _is_hidden(self, name: bytes) -> bool:
        return name in self._removing or (self._is_spoilt and name == self._written)

    def _remove(self, name: bytes) -> None:
        self._surely(partial(self.tier.remove, name), None)
        with self._changed:
            self._removing[name] -= 1
            if not self._removing[name]:
                del self._removing[name]
                self._changed.notify_all()

    async def _on_readers(self, function: Callable[[], T], *, otherwise: T) -> T:
        if self._readers is None:
            return function()
        with self._changed:
            if self._is_closing or self._num_busy >= NUM_READERS:
                return otherwise
            self._num_busy += 1
        reading = self._readers.submit(self._surely, function, otherwise)
        reading.add_done_callback(self._is_idle_again)
        return await asyncio.wrap_future(reading)

    def _surely(self, function: Callable[[], T], otherwise: T) -> T:
        """A cache must not take its users down, whatever a driver comes up with."""
        try:
            return function()
        except Exception:
            log.exception("the %s tier failed", self.tier.name)
            self.tier.stats.count(num_errors=1)
            return otherwise

    def _is_idle_again(self, reading: Future[T]) -> None:
        with self._changed:
            self._num_busy -= 1

    def _main(self) -> None:
        self._surely(self.tier.open, None)
        while (record := self._next()) is not None:
            self._surely(partial(self._store, record), None)
            with self._changed:
                is_wanted = self._waiting.get(record.name) is record
                if is_wanted:
                    del self._waiting[record.name]
                    self._written, self._is_spoilt = None, False
                self._changed.notify_all()
            if not is_wanted:  # discarded while it was being written, and perhaps made anew
                self._surely(partial(self.tier.remove, record.name), None)
                with self._changed:
                    self._written, self._is_spoilt = None, False

    def _next(self) -> BlockRecord | None:
        """The record that has waited longest; it stays readable until it is written. One that was
        made anew waits until the wrong one is removed, which would remove it as well."""
        with self._changed:
            while True:
                for name, record in self._waiting.items():
                    if name not in self._removing:
                        self._written = name
                        return record
                if self._is_closing and not self._waiting:
                    return None
                self._changed.wait()

    def _store(self, record: BlockRecord) -> None:
        with self._writing:
            if not self.tier.holds(record.name):
                for name in self.tier.victims():
                    self._evict(name)
            if not self.tier.put(record):
                self.tier.stats.count(num_dropped=1)

    def _evict(self, name: bytes) -> None:
        """Move it on to the next tier, unless that has it."""
        if self._below is not None and not self._below.holds(name):
            with self._invalidations.watch() as invalid:
                for record in self.tier.read(self._before_removed([name])):
                    if name not in invalid:
                        self._below.put(record)
                if name in invalid:
                    self._invalidations.invalidate(name)
        self.tier.remove(name)
        self.tier.stats.count(num_evicted=1)
