"""Reading and writing one value's file. Blocks."""

from __future__ import annotations

import logging
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from baton.gateway.storage.record import (
    CorruptRecord,
    Metadata,
    checksum,
    encode_metadata,
    read_metadata,
)

log = logging.getLogger(__name__)

CHUNK_BYTES = 1 << 18


class Budget(Protocol):
    def make_room(self, num_bytes: int, *, evicted_kind: str | None = None) -> None:
        """Make room for `num_bytes` more. Raises StorageFull, OSError."""

    def count(self, num_bytes: int) -> None:
        """Count added, or (negative) removed, bytes."""


class FileWriter:
    """Writes a value in parts. `commit` makes it readable; `abort` leaves nothing behind."""

    def __init__(
        self,
        budget: Budget,
        path: Path,
        *,
        owner: str,
        id: str,
        created_at: float,
        expires_at: float | None,
    ) -> None:
        """Raises OSError."""
        self._budget = budget
        self._owner = owner
        self._id = id
        self._path = path
        self.created_at = created_at
        self.expires_at = expires_at
        """Unix seconds; may be changed until `commit`."""
        self._temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._file = os.fdopen(os.open(self._temporary, flags, 0o600), "wb")
        self._checksum = 0
        self.num_bytes = 0

    def write(self, data: bytes | memoryview, *, evicted_kind: str | None = None) -> None:
        """Raises StorageFull, OSError; then `abort`."""
        self._budget.make_room(len(data), evicted_kind=evicted_kind)
        self._file.write(data)
        self._budget.count(len(data))
        self._checksum = checksum(data, self._checksum)
        self.num_bytes += len(data)

    def commit(self, *, fsync: bool) -> Metadata:
        """`fsync`: it survives a crash of the machine, not only of the process. Raises OSError;
        then `abort`."""
        metadata = Metadata(
            owner=self._owner,
            id=self._id,
            num_bytes=self.num_bytes,
            checksum=self._checksum,
            created_at=self.created_at,
            expires_at=self.expires_at,
        )
        self._file.write(encode_metadata(metadata))
        self._file.flush()
        if fsync:
            os.fsync(self._file.fileno())
        self._file.close()
        if metadata.expires_at is not None:
            os.utime(self._temporary, (metadata.created_at, metadata.expires_at))
        num_replaced = 0
        with suppress(OSError):
            num_replaced = self._path.stat().st_size
        os.replace(self._temporary, self._path)
        self._budget.count(-num_replaced)
        return metadata

    def abort(self) -> None:
        """Safe to repeat, and after `commit`."""
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):
            self._temporary.unlink()
            self._budget.count(-self.num_bytes)


class FileReader:
    def __init__(self, fd: int, metadata: Metadata, path: Path) -> None:
        self.metadata = metadata
        self._file = os.fdopen(fd, "rb", buffering=0)
        self._path = path
        self._num_left = metadata.num_bytes
        self._checksum = 0

    def read(self, max_bytes: int = CHUNK_BYTES) -> bytes:
        """The next bytes; empty at the end. Raises CorruptRecord there if the checksum is wrong;
        OSError."""
        data = self._file.read(min(max_bytes, self._num_left))
        self._num_left -= len(data)
        self._checksum = checksum(data, self._checksum)
        is_cut = not data and self._num_left > 0
        if is_cut or (not self._num_left and self._checksum != self.metadata.checksum):
            log.warning("%s is corrupt: its checksum is wrong", self._path)
            raise CorruptRecord("a stored file is damaged: its checksum does not match")
        return data

    def read_all(self) -> bytes:
        """Raises CorruptRecord, OSError."""
        parts = []
        while data := self.read(max(CHUNK_BYTES, self._num_left)):
            parts.append(data)
        return b"".join(parts)

    def close(self) -> None:
        self._file.close()


def open_file(path: Path) -> tuple[int, Metadata] | None:
    """A reader; None if the file is missing, or not a complete one of ours. Raises OSError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        return fd, read_metadata(fd)
    except CorruptRecord as error:
        os.close(fd)
        log.warning("%s is corrupt: %s", path, error)
        return None
    except BaseException:
        os.close(fd)
        raise
