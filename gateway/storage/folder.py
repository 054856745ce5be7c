"""The folder: one file a value, there as a whole or not at all. All of it blocks.

    FOLDER/KIND/<digest of the owner>/ID          0600, in folders of 0700
    FOLDER/KIND/<digest of the owner>/.ID.RANDOM  what is being written; nobody reads it

A file's time is when it expires, if it does: until then a sweep need not open it.

Nothing else in it is entered, counted or removed: it may be somebody's folder of other things.

Several processes may use it at once. Two that write one id: the later one's value holds, unless
they `lock` it. Whoever reads a value reads it to its end, also if it is deleted or replaced
meanwhile.
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
"""What nobody has written to for so long, nobody writes any more."""
MAX_LOCK_WAITERS = 2
"""Threads that may wait long for another gateway's locks: fewer than `Storage` has."""
UNSEEN_SHARE = 32
"""The folder is looked through again once one process has added this part of what may be in it:
others add as well, and it knows of that by looking alone."""


@dataclass(frozen=True, slots=True)
class Place:
    kind: str
    owner: str
    """Whose it is: `Caller.owner`."""
    id: str


@dataclass(frozen=True, slots=True)
class _Held:
    """A file as a look through the folder finds it."""

    path: Path
    num_bytes: int
    time: float
    """It need not be looked into before; unix seconds."""


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
        """Added here since the last look."""
        self._locks = FileLocks(MAX_LOCK_WAITERS)
        self._counting = threading.Lock()
        self._looking = threading.Lock()

    def open(self) -> None:
        """Make it, see that it can be written, and sweep it. Raises OSError."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = self.folder / f".probe.{secrets.token_hex(4)}"
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        probe.unlink()
        self.sweep()

    def aside(self, name: str) -> Path:
        """A folder of the same gateways for what is no value. It is whose it is: nothing in it is
        counted or swept."""
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
        """None if it is not there, or corrupt. Raises OSError if it cannot be told."""
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
        """Within it nobody else locks or deletes what is there. Raises OSError."""
        path = self._path(place)
        return nullcontext() if path is None else self._locks.locked(path)

    def delete(self, place: Place) -> bool:
        """Whether it was there. Raises OSError."""
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
        """Values of `owner`, or of everybody; the oldest first. Raises OSError."""
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
        """Make room for `num_bytes` more: by what has expired, then by the oldest values of
        `evicted_kind`, of whoever has most of them. Raises StorageFull, OSError."""
        if not self._needs_look(num_bytes):
            return
        with self._looking:
            if self._needs_look(num_bytes):
                self.sweep()
            if self._lacks(num_bytes) and evicted_kind is not None:
                self._evict(evicted_kind, num_bytes)
        if self._lacks(num_bytes):
            raise StorageFull(
                f"gateway.storage.max_bytes is {self._max_bytes}, and all of it is used; delete "
                "what is not needed any more",
                retry_after_s=60.0,
            )

    def count(self, num_bytes: int) -> None:
        """Count bytes that were added here, or (negative) taken away."""
        with self._counting:
            self.num_bytes += num_bytes
            self._num_unseen += max(0, num_bytes)

    def sweep(self) -> None:
        """Remove what has expired and what was abandoned, and count the rest. Raises OSError."""
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
            return False  # whose it is cannot be told
        if opened is None:
            return now - held.time > ABANDONED_S
        os.close(opened[0])
        return opened[1].is_expired(now)

    def _evict(self, kind: str, num_bytes: int) -> None:
        """A little more than asked for, so that not each value looks through them all."""
        if num_bytes > self._max_bytes:
            return  # nothing makes room for that
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
    """Files of all owners. What goes away meanwhile is left out. Raises OSError."""
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
    """Names of tenants may be anything; a folder's may not."""
    return blake2b(owner.encode(), digest_size=16).hexdigest()
