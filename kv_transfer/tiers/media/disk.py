"""The tier in a folder of a local disk: one file a block, found again after a restart.

    folder/v1/slot-N/ab/abcdef...-DIGEST.kv     slot-N is this replica's alone

Each replica has a slot, rather than all of them one folder: its capacity is exact, and no file
vanishes under a reader. A replica that starts again takes a free slot, with its contents. The index
is in memory, rebuilt from file times at `open`; a file is verified when it is read.

If the system refuses to write (no space, no permission, read-only, the folder gone), writing pauses
for a while and reading goes on. Broken files are removed. Files with other names are left alone.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from baton.core.clock import Clock, monotonic
from baton.core.errors import CorruptPiece
from baton.kv_transfer.tiers.media.base import TierStats
from baton.kv_transfer.tiers.media.files import TEMPORARY, Slot, read_whole, write_whole
from baton.kv_transfer.tiers.media.lru import Lru
from baton.kv_transfer.tiers.media.record import (
    VERSION,
    BlockRecord,
    RecordFormat,
    block_name,
    is_record_name,
)

log = logging.getLogger(__name__)

RETRY_AFTER_S = 30.0
"""Seconds without writes after the system has refused one."""
END_OF_WRITE_S = 1.0
"""The time limit of a write that is under way when the tier is closed."""


class DiskTier:
    name = "disk"
    is_slow = True

    def __init__(
        self,
        format_: RecordFormat,
        folder: Path,
        capacity_bytes: int,
        *,
        fsync: bool = False,
        clock: Clock = monotonic,
    ) -> None:
        self.capacity_bytes = capacity_bytes
        self.stats = TierStats()
        self._format = format_
        self._folder = folder / f"v{VERSION}"
        self._fsync = fsync
        self._clock = clock
        self._slot: Slot | None = None
        self._paused_until = float("-inf")
        self._lru: Lru[str] = Lru()
        """Files by name within the slot; other layouts' files take room as well."""
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._is_closed = False

    @property
    def num_bytes(self) -> int:
        return self._lru.num_bytes

    @property
    def num_blocks(self) -> int:
        return len(self._lru)

    def open(self) -> None:
        with self._writing:
            self._try_to_claim()
            self._let_go_if_closed()

    def holds(self, name: bytes) -> bool:
        return self._format.file_name(name) in self._lru

    def num_leading(self, names: Sequence[bytes]) -> int:
        for index, name in enumerate(names):
            if not self.holds(name):
                return index
        return len(names)

    def read(self, names: Sequence[bytes]) -> list[BlockRecord]:
        found: list[BlockRecord] = []
        with self.stats.timed("read_s"):
            for name in names:
                record = self._read(name)
                if record is None:
                    break
                found.append(record)
        return found

    def victims(self) -> list[bytes]:
        with self._lock:
            keys = self._lru.victims(self._format.file_bytes, self.capacity_bytes)
        for key in keys:
            if not self._format.is_ours(key):
                self._remove(key)
                self.stats.count(num_evicted=1)
        return [block_name(key) for key in keys if self._format.is_ours(key)]

    def put(self, record: BlockRecord) -> bool:
        with self._writing:
            is_here = self._put(record)
            self._let_go_if_closed()
        return is_here

    def remove(self, name: bytes) -> None:
        self._remove(self._format.file_name(name))

    def recent(self) -> list[BlockRecord]:
        return []  # it is all kept for the next incarnation

    def close(self) -> None:
        """A write that hangs is not waited for: it lets the slot go when the disk is back."""
        self._is_closed = True
        if self._writing.acquire(timeout=END_OF_WRITE_S):
            try:
                self._let_go()
            finally:
                self._writing.release()

    def _put(self, record: BlockRecord) -> bool:
        key, size = self._format.file_name(record.name), self._format.file_bytes
        if key in self._lru:
            return True
        if not self._is_writable() or self._lru.num_bytes + size > self.capacity_bytes:
            return False
        try:
            with self.stats.timed("write_s"):
                self._write(key, record)
        except OSError as error:
            self._pause(error)
            return False
        with self._lock:
            self._lru.add(key, size)
        self.stats.count(num_written=1)
        return True

    def _read(self, name: bytes) -> BlockRecord | None:
        key, slot = self._format.file_name(name), self._slot
        if slot is None or key not in self._lru:
            return None
        path = slot.path / key
        try:
            record = self._format.decode(read_whole(path, self._format.file_bytes), name)
        except CorruptPiece as error:
            log.warning("%s is dropped: %s", path, error)
            self.stats.count(num_corrupt=1)
            self._remove(key)
            return None
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                log.warning("cannot read KV from disk: %s", error)
            self.stats.count(num_errors=1)
            self._remove(key)
            return None
        with suppress(OSError):  # on a disk that became read-only, say
            os.utime(path)  # the next incarnation finds what is used, in order
        with self._lock:
            self._lru.touch(key)
        return record

    def _write(self, key: str, record: BlockRecord) -> None:
        assert self._slot is not None
        path = self._slot.path / key
        with suppress(FileExistsError):
            path.parent.mkdir(mode=0o700)  # not its parents: a slot that is gone is not ours
        write_whole(path, self._format.encode(record), fsync=self._fsync)

    def _remove(self, key: str) -> None:
        with self._lock:
            self._lru.remove(key)
        slot = self._slot
        if slot is not None:
            with suppress(OSError):
                (slot.path / key).unlink()

    def _is_writable(self) -> bool:
        if self._is_closed or self._clock() < self._paused_until:
            return False
        if self._slot is None:
            self._try_to_claim()
        return self._slot is not None

    def _pause(self, error: OSError) -> None:
        self.stats.count(num_errors=1)
        self._paused_until = self._clock() + RETRY_AFTER_S
        log.warning("KV is not written to disk for %g s: %s", RETRY_AFTER_S, error)
        if isinstance(error, FileNotFoundError):  # the folder was deleted under us
            self._let_go()

    def _try_to_claim(self) -> None:
        try:
            self._slot = Slot.claim(self._folder)
            self._index(self._slot.path)
        except OSError as error:
            self._pause(error)

    def _let_go_if_closed(self) -> None:
        if self._is_closed:  # `close` does not wait for this
            self._let_go()

    def _let_go(self) -> None:
        slot, self._slot = self._slot, None
        if slot is not None:
            slot.release()
        with self._lock:
            self._lru.clear()

    def _index(self, slot: Path) -> None:
        """Find what is in the slot, oldest first; what a crash left half-written goes."""
        found = sorted(_files(slot), key=lambda entry: entry.stat().st_mtime_ns)
        with self._lock:
            self._lru.clear()
            for entry in found:
                key = os.path.relpath(entry.path, slot)
                self._lru.add(key, entry.stat().st_size)
            excess = self._lru.victims(0, self.capacity_bytes)
        for key in excess:  # the capacity was larger once
            self._remove(key)


def _files(slot: Path) -> Iterator[os.DirEntry[str]]:
    for shard in os.scandir(slot):
        if shard.is_dir(follow_symlinks=False) and len(shard.name) == 2:
            for entry in os.scandir(shard.path):
                if entry.name.endswith(TEMPORARY):
                    os.unlink(entry.path)
                elif entry.is_file(follow_symlinks=False) and is_record_name(entry.name):
                    yield entry
