"""The tier that replicas share: a folder, or a bucket that fsspec can reach.

    URL/v1/ab/abcdef...-DIGEST.kv     equal names mean equal bytes, so writers cannot conflict

Objects are written whole: renamed into place in a folder, put in one request in a bucket. Nobody
owns the store, so its size is that of the last listing plus what was written here since; a replica
that finds it too large removes the oldest objects. Others may do so at any time: an object that is
gone is a miss. Any error of the far side pauses this tier for a while. What is removed meanwhile, a
invalidated record for instance, is gone for this replica at once, and from the store with the first
call after the pause.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from typing import Any, TypeVar

from baton.core.clock import Clock, monotonic
from baton.core.errors import CorruptPiece
from baton.kv_transfer.tiers.media.base import TierStats
from baton.kv_transfer.tiers.media.lru import Lru
from baton.kv_transfer.tiers.media.objects import Objects
from baton.kv_transfer.tiers.media.record import (
    VERSION,
    BlockRecord,
    RecordFormat,
    block_name,
    is_record_name,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

RETRY_AFTER_S = 30.0
LIST_AFTER_S = 300.0
"""A bounded store is listed anew when the listing is older than this, or when there were written"""
LIST_AFTER_FRACTION = 0.05
"""of its capacity since."""
MAX_AT_ONCE = 8
"""Requests to the store, of one replica."""
MAX_KNOWN = 1 << 20
MAX_REMOVED_AT_ONCE = 256
"""Overdue removals that one call catches up on."""
MAX_REMOVAL_DELAY = 128
"""In pauses. A store that is read-only here would else be paused for its removals for ever: each
that fails doubles the time until the next."""
CLOSE_WITHIN_S = 5.0
"""How long overdue removals may hold up the end of a replica."""


class StoreTier:
    name = "store"
    is_slow = True

    def __init__(
        self,
        format_: RecordFormat,
        url: str,
        capacity_bytes: int | None,
        *,
        clock: Clock = monotonic,
    ) -> None:
        """Raises InvalidConfig for a URL that nothing here can open."""
        self.capacity_bytes = capacity_bytes
        self.stats = TierStats()
        self._format = format_
        self._objects = Objects(url, f"v{VERSION}")
        self._clock = clock
        self._paused_until = float("-inf")
        self._listed_at = float("-inf")
        self._num_bytes_since = 0
        self._lru: Lru[str] = Lru()
        """What is known to be there, by path within the root, the oldest first."""
        self._overdue: dict[str, None] = {}
        """What was removed and the store still has, oldest first: nobody here finds it."""
        self._removes_after_s, self._removal_delay = float("-inf"), 1
        self._lock = threading.Lock()
        self._at_once = ThreadPoolExecutor(MAX_AT_ONCE, thread_name_prefix="baton-store")

    @property
    def num_bytes(self) -> int:
        return self._lru.num_bytes

    @property
    def num_blocks(self) -> int:
        return len(self._lru)

    def open(self) -> None:
        if self.capacity_bytes is not None:
            self._list()

    def holds(self, name: bytes) -> bool:
        return self._format.file_name(name) in self._lru

    def num_leading(self, names: Sequence[bytes]) -> int:
        """Asks the store about unknown names: another replica may have written them."""
        self._remove_overdue()
        for start in range(0, len(names), MAX_AT_ONCE):
            keys = [self._format.file_name(n) for n in names[start : start + MAX_AT_ONCE]]
            for index, is_there in enumerate(self._map(self._exists, keys)):
                if not is_there:
                    return start + index
        return len(names)

    def read(self, names: Sequence[bytes]) -> list[BlockRecord]:
        self._remove_overdue()
        found: list[BlockRecord] = []
        with self.stats.timed("read_s"):
            for record in self._map(self._read, names):
                if record is None:
                    break
                found.append(record)
        return found

    def victims(self) -> list[bytes]:
        if self.capacity_bytes is None:
            return []
        self._remove_overdue()
        if self._is_listing_old():
            self._list()
        with self._lock:
            keys = self._lru.victims(self._format.file_bytes, self.capacity_bytes)
        for key in keys:
            if not self._format.is_ours(key):
                self._remove(key)
                self.stats.count(num_evicted=1)
        return [block_name(key) for key in keys if self._format.is_ours(key)]

    def put(self, record: BlockRecord) -> bool:
        self._remove_overdue()
        key, size = self._format.file_name(record.name), self._format.file_bytes
        if self._exists(key):
            return True
        is_over = self.capacity_bytes is not None and self.num_bytes + size > self.capacity_bytes
        if self._is_paused or is_over:
            return False
        with self.stats.timed("write_s"):
            is_written = self._does(lambda: self._objects.write(key, self._format.encode(record)))
        if is_written:
            with self._lock:
                self._overdue.pop(key, None)  # it is another record now
            self._is_known(key)
            self._num_bytes_since += size
            self.stats.count(num_written=1)
        return is_written

    def remove(self, name: bytes) -> None:
        self._remove(self._format.file_name(name))

    def recent(self) -> list[BlockRecord]:
        return []  # it is all kept for the next incarnation

    def close(self) -> None:
        if self._overdue:
            with suppress(TimeoutError, RuntimeError):  # the far side hangs; it is closed already
                self._at_once.submit(self._remove_overdue).result(CLOSE_WITHIN_S)
        self._at_once.shutdown(wait=False, cancel_futures=True)

    @property
    def _is_paused(self) -> bool:
        return self._clock() < self._paused_until

    def _is_listing_old(self) -> bool:
        assert self.capacity_bytes is not None
        return (
            self._num_bytes_since > self.capacity_bytes * LIST_AFTER_FRACTION
            or self._clock() - self._listed_at > LIST_AFTER_S
        )

    def _exists(self, key: str) -> bool:
        if key in self._lru:
            return True
        if self._is_paused or key in self._overdue:
            return False
        if not self._try(lambda: self._objects.exists(key)):
            return False
        self._is_known(key)
        return True

    def _read(self, name: bytes) -> BlockRecord | None:
        key = self._format.file_name(name)
        if self._is_paused or key in self._overdue:
            return None
        data = self._try(lambda: self._objects.read(key, self._format.file_bytes))
        if data is None:
            with self._lock:
                self._lru.remove(key)
            return None
        try:
            record = self._format.decode(data, name)
        except CorruptPiece as error:
            log.warning("%s is dropped: %s", self._objects.path(key), error)
            self.stats.count(num_corrupt=1)
            self._remove(key)
            return None
        self._is_known(key)
        return record

    def _remove(self, key: str) -> None:
        with self._lock:
            self._lru.remove(key)
            if len(self._overdue) < MAX_KNOWN:
                self._overdue[key] = None
        self._remove_from_store(key)

    def _remove_overdue(self) -> None:
        """Catch up on what could not be removed while the store was left alone."""
        if not self._overdue or self._is_paused or self._clock() < self._removes_after_s:
            return
        with self._lock:
            keys = list(islice(self._overdue, MAX_REMOVED_AT_ONCE))
        for _ in self._map(self._remove_from_store, keys):
            pass

    def _remove_from_store(self, key: str) -> None:
        if self._is_paused:
            return
        if self._does(lambda: self._objects.remove(key)):
            with self._lock:
                self._overdue.pop(key, None)
                self._removal_delay = 1
            return
        with self._lock:
            if self._clock() >= self._removes_after_s:  # of several at once the first has said so
                self._removes_after_s = self._clock() + RETRY_AFTER_S * self._removal_delay
                self._removal_delay = min(2 * self._removal_delay, MAX_REMOVAL_DELAY)

    def _list(self) -> None:
        """What is there by now, everybody's."""
        listed = self._try(self._objects.listed)
        self._listed_at, self._num_bytes_since = self._clock(), 0
        if listed is not None:
            with self._lock:
                self._lru.clear()
                for key, size in listed:
                    if is_record_name(key.rpartition("/")[2]) and key not in self._overdue:
                        self._lru.add(key, size)

    def _is_known(self, key: str) -> None:
        with self._lock:
            if self.capacity_bytes is None and len(self._lru) >= MAX_KNOWN:
                self._lru.clear()
            self._lru.add(key, self._format.file_bytes)

    def _map(self, function: Callable[[Any], T], values: Iterable[Any]) -> Iterable[T]:
        try:
            return self._at_once.map(function, values)
        except RuntimeError:  # closed meanwhile
            return ()

    def _does(self, function: Callable[[], object]) -> bool:
        """Whether the far side does not refuse."""
        return self._try(lambda: (function(),)) is not None

    def _try(self, function: Callable[[], T]) -> T | None:
        """None, and a pause, if the far side refuses."""
        try:
            return function()
        except Exception as error:  # each file system raises what its own library raises
            self.stats.count(num_errors=1)
            if not self._is_paused:
                log.warning("the KV store is left alone for %g s: %r", RETRY_AFTER_S, error)
            self._paused_until = self._clock() + RETRY_AFTER_S
            return None
