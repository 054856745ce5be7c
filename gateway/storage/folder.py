"""The storage folder: one file per value, written atomically. Blocks.

    FOLDER/KIND/<digest of the owner>/ID          0600, in folders of 0700
    FOLDER/KIND/<digest of the owner>/.ID.RANDOM  a file being written, never read

A file's mtime is its expiry, if it has one: until then a sweep need not open it.

Other files in the folder are never opened, counted or removed.

Several processes may use it at once. If two write one id, the later value holds, unless they `lock`
it. A reader can finish a value that is deleted or replaced meanwhile.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from baton.core.errors import StorageFull
from baton.gateway.storage.file_locks import FileLocks
from baton.gateway.storage.files import FileReader, FileWriter, open_file
from baton.gateway.storage.record import Metadata

log = logging.getLogger(__name__)

ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199}")
KIND = re.compile("batch|file|file_info|response|response_run")
OWNER = re.compile(r"[0-9a-f]{32}")
FILE = re.compile(rf"{ID.pattern}|\.{ID.pattern}\.[0-9a-f]{{8}}")
ABANDONED_S = 3600.0
"""Seconds after its last write from which an unfinished file counts as abandoned."""
MAX_LOCK_WAITERS = 2
"""Threads that may wait long for other gateways' locks: fewer than `Storage` has."""
UNSEEN_SHARE = 32
"""The folder is counted again once this process has added 1/UNSEEN_SHARE of `max_bytes`, since only
counting shows what other processes add."""


@dataclass(frozen=True, slots=True)
class Place:
    kind: str
    owner: str
    """The owner id, as `Caller.owner`."""
    id: str


@dataclass(frozen=True, slots=True)
class _Held:
    """A file found while listing the folder."""

    path: Path
    num_bytes: int
    time: float
    """Unix seconds before which it need not be opened."""


class StorageFolder:
    def __init__(
        self, folder: Path, max_bytes: int, *, unix_time: Callable[[], float] = time.time
    ) -> None:
        self.folder = folder
        self._max_bytes = max_bytes
        self._now = unix_time
        self.num_bytes = 0
        """Bytes in the folder, as far as is known here."""
        self._num_unseen = 0
        """Bytes added by this process since the last count."""
        self._locks = FileLocks(MAX_LOCK_WAITERS)
        self._counting = threading.Lock()
        self._looking = threading.Lock()

    def open(self) -> None:
        """Create the folder, check that it can be written, and sweep it. Raises OSError."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = self.folder / f".probe.{secrets.token_hex(4)}"
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        probe.unlink()
        self.sweep()

    def aside(self, name: str) -> Path:
        """A subfolder for other data of the same gateways, which is neither counted nor swept."""
        return self.folder / f".{name}"

    def begin(self, place: Place, ttl_s: float | None) -> FileWriter:
        """Raises OSError; ValueError for an id that cannot be a file's name."""
        path = self._path(place)
        if path is None:
            raise ValueError(f"{place.id!r} cannot be an id")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        now = self._now()
        expires_at = None if ttl_s is None else now + ttl_s
        return FileWriter(
            self, path, owner=place.owner, id=place.id, created_at=now, expires_at=expires_at
        )

    def reader(self, place: Place) -> FileReader | None:
        """A reader of the value; None if it is missing or corrupt. Raises OSError if that cannot be
        determined."""
        path = self._path(place)
        if path is None:
            return None
        opened = open_file(path)
        if opened is None:
            return None
        fd, metadata = opened
        is_others = (metadata.owner, metadata.id) != (place.owner, place.id)
        if is_others or metadata.is_expired(self._now()):
            os.close(fd)
            return None
        return FileReader(fd, metadata, path)

    def lock(self, place: Place) -> AbstractContextManager[None]:
        """Context in which no other locks or deletes the value. Raises OSError."""
        path = self._path(place)
        return nullcontext() if path is None else self._locks.locked(path)

    def delete(self, place: Place) -> bool:
        """Delete the value; whether it existed. Raises OSError."""
        path = self._path(place)
        if path is None:
            return False
        with self._locks.locked(path):
            opened = open_file(path)
            if opened is not None:
                os.close(opened[0])
            was_there = self._unlink(path) and opened is not None
        return was_there and opened is not None and not opened[1].is_expired(self._now())

    def entries(self, kind: str, owner: str | None = None) -> list[Metadata]:
        """Values of `owner`, or of all owners; the oldest first. Raises OSError."""
        folder = self.folder / kind
        if owner is not None:
            folder = folder / _owner_name(owner)
        found: list[Metadata] = []
        found_files = _every(folder) if owner is None else _files(folder)
        for held in found_files:
            opened = None if _is_temporary(held.path) else open_file(held.path)
            if opened is None:
                continue
            os.close(opened[0])
            if not opened[1].is_expired(self._now()):
                found.append(opened[1])
        return sorted(found, key=lambda metadata: metadata.created_at)

    def make_room(self, num_bytes: int, *, evicted_kind: str | None = None) -> None:
        """Make room for `num_bytes` more: drop expired values, then the oldest of `evicted_kind` of
        the owner with the most. Raises StorageFull, OSError."""
        if not self._needs_look(num_bytes):
            return
        with self._looking:
            if self._needs_look(num_bytes):
                self.sweep()
            if self._lacks(num_bytes) and evicted_kind is not None:
                self._evict(evicted_kind, num_bytes)
        if self._lacks(num_bytes):
            raise StorageFull(
                f"all {self._max_bytes} bytes of gateway.storage.max_bytes are used; delete files "
                "and responses that you no longer need",
                retry_after_s=60.0,
            )

    def count(self, num_bytes: int) -> None:
        """Count bytes added, or (negative) removed, by this process."""
        with self._counting:
            self.num_bytes += num_bytes
            self._num_unseen += max(0, num_bytes)

    def sweep(self) -> None:
        """Remove expired values and abandoned files, and count the rest. Raises OSError."""
        now, num_bytes = self._now(), 0
        for held in self._all():
            if self._is_over(held, now) and self._unlink(held.path):
                continue
            num_bytes += held.num_bytes
        with self._counting:
            self.num_bytes, self._num_unseen = num_bytes, 0

    def _all(self) -> Iterator[_Held]:
        for kind in _folders(self.folder, KIND):
            yield from _every(kind)

    def _is_over(self, held: _Held, now: float) -> bool:
        if _is_temporary(held.path):
            return now - held.time > ABANDONED_S
        if held.time > now:
            return False
        try:
            opened = open_file(held.path)
        except OSError:
            return False  # its owner is unknown
        if opened is None:
            return now - held.time > ABANDONED_S
        os.close(opened[0])
        return opened[1].is_expired(now)

    def _evict(self, kind: str, num_bytes: int) -> None:
        """Evict a little more than asked for, so that not every write lists all values."""
        if num_bytes > self._max_bytes:
            return  # larger than the whole storage
        wanted = self.num_bytes + num_bytes - self._max_bytes + self._max_bytes // UNSEEN_SHARE
        by_owner: dict[Path, list[_Held]] = {}
        for held in _every(self.folder / kind):
            if not _is_temporary(held.path):
                by_owner.setdefault(held.path.parent, []).append(held)
        for files in by_owner.values():
            files.sort(key=lambda held: held.time, reverse=True)
        bytes_by_owner = {
            owner: sum(held.num_bytes for held in files) for owner, files in by_owner.items()
        }
        num_freed = num_files = 0
        while num_freed < wanted and bytes_by_owner:
            owner = max(bytes_by_owner, key=bytes_by_owner.__getitem__)
            oldest = by_owner[owner].pop()
            bytes_by_owner[owner] -= oldest.num_bytes
            if not by_owner[owner]:
                del bytes_by_owner[owner]
            if self._unlink(oldest.path):
                self.count(-oldest.num_bytes)
                num_freed, num_files = num_freed + oldest.num_bytes, num_files + 1
        log.info("%s are full: the oldest %d made room (%d bytes)", kind, num_files, num_freed)

    def _needs_look(self, num_bytes: int) -> bool:
        return self._num_unseen * UNSEEN_SHARE > self._max_bytes or self._lacks(num_bytes)

    def _lacks(self, num_bytes: int) -> bool:
        return self.num_bytes + num_bytes > self._max_bytes

    def _unlink(self, path: Path) -> bool:
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        return True

    def _path(self, place: Place) -> Path | None:
        if not ID.fullmatch(place.id):
            return None
        return self.folder / place.kind / _owner_name(place.owner) / place.id


def _every(kind: Path) -> Iterator[_Held]:
    """Files of all owners, without those deleted meanwhile. Raises OSError."""
    for owner in _folders(kind, OWNER):
        yield from _files(owner)


def _files(owner: Path) -> Iterator[_Held]:
    for one in _inside(owner):
        if FILE.fullmatch(one.name) and one.is_file(follow_symlinks=False):
            with suppress(FileNotFoundError):
                stat = one.stat(follow_symlinks=False)
                yield _Held(Path(one.path), stat.st_size, stat.st_mtime)


def _folders(folder: Path, name: re.Pattern[str]) -> Iterator[Path]:
    for one in _inside(folder):
        if name.fullmatch(one.name) and one.is_dir(follow_symlinks=False):
            yield Path(one.path)


def _inside(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except FileNotFoundError:
        return []


def _is_temporary(path: Path) -> bool:
    return path.name.startswith(".")


def _owner_name(owner: str) -> str:
    """A digest, since tenants' names may not be valid folder names."""
    return blake2b(owner.encode(), digest_size=16).hexdigest()
