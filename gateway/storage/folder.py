"""The folder: one file a value, there as a whole or not at all. All of it blocks.

    FOLDER/KIND/<digest of the owner>/ID          0600, in folders of 0700
    FOLDER/KIND/<digest of the owner>/.ID.RANDOM  what is being written; nobody reads it

A file's time is when it expires, if it does: until then a sweep need not open it.

Nothing else in it is entered, counted or removed: it may be somebody's folder of other things.

Several processes may use it at once. Two that write one id: the later one's value holds. Whoever
reads a value reads it to its end, also if it is deleted or replaced meanwhile.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

from baton.core.errors import StorageFull
from baton.gateway.storage.files import FileReader, FileWriter, open_file
from baton.gateway.storage.record import Facts

log = logging.getLogger(__name__)

ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,199}")
RESPONSES = "response"
KIND = re.compile(f"batch|file|file_info|{RESPONSES}")
OWNER = re.compile(r"[0-9a-f]{32}")
FILE = re.compile(rf"{ID.pattern}|\.{ID.pattern}\.[0-9a-f]{{8}}")
ABANDONED_S = 3600.0
"""What nobody has written to for so long, nobody writes any more."""
UNSEEN_SHARE = 32
"""The folder is looked through again once one process has added this part of what may be in it:
others add as well, and it knows of that by looking alone. As much is kept free for what comes."""
SPARE_BYTES = 256 << 20
"""Of its disk, that are left to others; at most SPARE_SHARE of it."""
SPARE_SHARE = 50


@dataclass(frozen=True, slots=True)
class Place:
    kind: str
    owner: str
    """Whose it is: `Caller.owner`."""
    id: str


@dataclass(slots=True)
class _Bytes:
    files: int = 0
    """Of files, of batches, and of what lies aside."""
    responses: int = 0

    @property
    def total(self) -> int:
        return self.files + self.responses

    def add(self, num_bytes: int, *, is_file: bool) -> None:
        if is_file:
            self.files += num_bytes
        else:
            self.responses += num_bytes


@dataclass(frozen=True, slots=True)
class _Account:
    """What one value is written on."""

    folder: StorageFolder
    is_file: bool
    is_within_share: bool

    def check_room(self, num_bytes: int) -> None:
        self.folder.check_room(num_bytes, is_within_share=self.is_within_share)

    def count(self, num_bytes: int) -> None:
        self.folder.count(num_bytes, is_file=self.is_file)


@dataclass(frozen=True, slots=True)
class _Held:
    """A file as a look through the folder finds it."""

    path: Path
    num_bytes: int
    time: float
    """It need not be looked into before; unix seconds."""


class Disk(Protocol):
    """What `os.statvfs` tells of one."""

    @property
    def f_frsize(self) -> int: ...
    @property
    def f_blocks(self) -> int: ...
    @property
    def f_bavail(self) -> int: ...


class StorageFolder:
    def __init__(
        self,
        folder: Path,
        max_bytes: int,
        *,
        files_share: float = 0.5,
        unix_time: Callable[[], float] = time.time,
        disk_of: Callable[[Path], Disk] = os.statvfs,
    ) -> None:
        self.folder = folder
        self._max_bytes = max_bytes
        self._max_files_bytes = int(max_bytes * files_share)
        self._now = unix_time
        self._disk_of = disk_of
        self._aside: set[Path] = set()
        self._known, self._added = _Bytes(), _Bytes()
        """What the last look has found; what was added here since it began, less what went."""
        self._num_unseen = 0
        """Added here since the last look."""
        self._counting = threading.Lock()

    @property
    def num_bytes(self) -> int:
        """In it, as far as is known here."""
        return self._known.total + self._added.total

    @property
    def needs_look(self) -> bool:
        """Others may have filled it."""
        return self._num_unseen * UNSEEN_SHARE > self._max_bytes

    def open(self) -> None:
        """Make it, see that it can be written, and sweep it. Raises OSError."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = self.folder / f".probe.{secrets.token_hex(4)}"
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        probe.unlink()
        self.sweep()

    def aside(self, name: str) -> Path:
        """A folder of the same gateways for what is no value. It is counted with the files, and
        never swept."""
        path = self.folder / f".{name}"
        self._aside.add(path)
        return path

    def begin(
        self, place: Place, ttl_s: float | None, *, is_within_share: bool = False
    ) -> FileWriter:
        """`is_within_share`: see `check_room`. Raises OSError; ValueError for an id that cannot be
        a file's name."""
        path = self._path(place)
        if path is None:
            raise ValueError(f"{place.id!r} cannot be an id")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        now = self._now()
        expires_at = None if ttl_s is None else now + ttl_s
        account = _Account(self, place.kind != RESPONSES, is_within_share)
        return FileWriter(
            account, path, owner=place.owner, id=place.id, created_at=now, expires_at=expires_at
        )

    def reader(self, place: Place) -> FileReader | None:
        """None if it is not there, or garbled. Raises OSError if it cannot be told."""
        path = self._path(place)
        if path is None:
            return None
        opened = open_file(path)
        if opened is None:
            return None
        fd, facts = opened
        if (facts.owner, facts.id) != (place.owner, place.id) or facts.is_expired(self._now()):
            os.close(fd)
            return None
        return FileReader(fd, facts, path)

    def delete(self, place: Place) -> bool:
        """Whether it was there. Raises OSError."""
        path = self._path(place)
        if path is None:
            return False
        opened, num_bytes = open_file(path), 0
        if opened is not None:
            num_bytes = os.fstat(opened[0]).st_size
            os.close(opened[0])
        if not self._unlink(path):
            return False
        self.count(-num_bytes, is_file=place.kind != RESPONSES)
        return opened is not None and not opened[1].is_expired(self._now())

    def entries(self, kind: str, owner: str | None = None) -> list[Facts]:
        """Of `owner`, or of everybody; the oldest first. Raises OSError."""
        folder = self.folder / kind
        if owner is not None:
            folder = folder / _owner_name(owner)
        found: list[Facts] = []
        found_files = _every(folder) if owner is None else _files(folder)
        for held in found_files:
            opened = None if _is_temporary(held.path) else open_file(held.path)
            if opened is None:
                continue
            os.close(opened[0])
            if not opened[1].is_expired(self._now()):
                found.append(opened[1])
        return sorted(found, key=lambda facts: facts.created_at)

    def check_room(self, num_bytes: int, *, is_within_share: bool = False) -> None:
        """For `num_bytes` more; `is_within_share`: within what files may take. Does not look into
        the folder. Raises StorageFull, OSError."""
        if is_within_share and not self._has_share(num_bytes):
            raise StorageFull(
                f"files and unfinished batches may take {self._max_files_bytes} bytes, which is "
                "gateway.storage.files_share of its max_bytes, and all of it is used; delete files "
                "that are not needed any more",
                retry_after_s=60.0,
            )
        num_lacking = self._num_lacking(num_bytes)
        if num_lacking <= 0:
            return
        if self.num_bytes + num_bytes > self._max_bytes:
            why = f"gateway.storage.max_bytes is {self._max_bytes}, and all of it is used; delete"
        else:
            why = f"the disk of gateway.storage.folder lacks {num_lacking} bytes; free some, delete"
        raise StorageFull(f"{why} what is not needed any more", retry_after_s=60.0)

    def can_hold(self, num_bytes: int, *, is_within_share: bool = False) -> bool:
        """Whether `num_bytes` more would have room if responses made it."""
        return num_bytes <= self._max_bytes and (not is_within_share or self._has_share(num_bytes))

    def count(self, num_bytes: int, *, is_file: bool) -> None:
        """Of what was added here, or taken away."""
        with self._counting:
            self._added.add(num_bytes, is_file=is_file)
            self._num_unseen += max(0, num_bytes)

    def look(self, wanted: int) -> None:
        """Sweep; then the oldest responses, of whoever has most of them, make room for `wanted`
        bytes and some more. Raises OSError."""
        self.open()
        slack = self._max_bytes // UNSEEN_SHARE
        if self._num_lacking(wanted + slack) > 0:
            self._evict(self._num_lacking(wanted + 2 * slack))

    def sweep(self) -> None:
        """Remove what has expired and what was abandoned, and count the rest. Raises OSError."""
        now, found = self._now(), _Bytes()
        with self._counting:
            before, self._num_unseen = self._added, 0
            self._added = _Bytes()
            self._known = _Bytes(
                files=self._known.files + before.files,
                responses=self._known.responses + before.responses,
            )
        for kind in _folders(self.folder, KIND):
            for held in _every(kind):
                if not (self._is_over(held, now) and self._unlink(held.path)):
                    found.add(held.num_bytes, is_file=kind.name != RESPONSES)
        for folder in self._aside:
            found.add(_num_bytes_below(folder), is_file=True)
        with self._counting:
            self._known = found

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

    def _evict(self, wanted: int) -> None:
        by_owner: dict[Path, list[_Held]] = {}
        for held in _every(self.folder / RESPONSES):
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
                self.count(-oldest.num_bytes, is_file=False)
                num_freed, num_files = num_freed + oldest.num_bytes, num_files + 1
        if num_files:
            log.info("the oldest %d responses made room (%d bytes)", num_files, num_freed)

    def _has_share(self, num_bytes: int) -> bool:
        num_files_bytes = self._known.files + self._added.files
        return num_files_bytes + num_bytes <= self._max_files_bytes

    def _num_lacking(self, num_bytes: int) -> int:
        """For `num_bytes` more, in what may be kept and on the disk; 0 or less if there is room.
        Raises OSError."""
        disk = self._disk_of(self.folder)
        spare = min(SPARE_BYTES, disk.f_blocks * disk.f_frsize // SPARE_SHARE)
        free = disk.f_bavail * disk.f_frsize - spare
        return num_bytes - min(free, self._max_bytes - self.num_bytes)

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


def _num_bytes_below(folder: Path) -> int:
    """Of all files. What goes away meanwhile is left out."""
    num_bytes = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                num_bytes += os.lstat(os.path.join(path, name)).st_size
    return num_bytes


def _every(kind: Path) -> Iterator[_Held]:
    """Files of all owners. What goes away meanwhile is left out. Raises OSError."""
    for owner in _folders(kind, OWNER):
        yield from _files(owner)


def _files(owner: Path) -> Iterator[_Held]:
    for one in _inside(owner):
        if FILE.fullmatch(one.name) and one.is_file(follow_symlinks=False):
            with suppress(FileNotFoundError):
                facts = one.stat(follow_symlinks=False)
                yield _Held(Path(one.path), facts.st_size, facts.st_mtime)


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
