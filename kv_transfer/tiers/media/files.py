"""Files that are there as a whole or not at all, and folders that one process has to itself.

    write    name.RANDOM.tmp -> (fsync) -> rename     a crash leaves a .tmp, which nobody reads
    claim    folder/v1/slot-0, slot-1, ...            the first whose lock is free

The lock is the kernel's: a process that dies, however it dies, releases it.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

TEMPORARY = ".tmp"
MAX_SLOTS = 256
_PRIVATE = 0o600  # KV says what was in a prompt


def write_whole(path: Path, parts: Sequence[bytes | memoryview], *, fsync: bool) -> None:
    """Raises OSError, and leaves nothing behind then."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}{TEMPORARY}")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with open(os.open(temporary, flags, _PRIVATE), "wb", buffering=0) as file:
            for part in parts:
                _write_all(file.fileno(), memoryview(part))
            if fsync:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    if fsync:
        _sync_folder(path.parent)


def read_whole(path: Path, max_bytes: int) -> bytearray:
    """All of it, or the first `max_bytes` + 1 bytes of what is too long. Raises OSError."""
    data = bytearray(max_bytes + 1)
    view, num_read = memoryview(data), 0
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    with open(os.open(path, flags), "rb", buffering=0) as file:
        while num_read < len(data):
            num_more = file.readinto(view[num_read:])
            if not num_more:
                break
            num_read += num_more
    view.release()
    del data[num_read:]
    return data


class Slot:
    """A subfolder that is this object's alone, until it is released or its process dies."""

    def __init__(self, path: Path, lock_fd: int) -> None:
        self.path = path
        self._lock_fd = lock_fd

    @classmethod
    def claim(cls, folder: Path) -> Slot:
        """Raises OSError; BlockingIOError if all slots are taken."""
        for number in range(MAX_SLOTS):
            path = folder / f"slot-{number}"
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _PRIVATE)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
            except BaseException:
                os.close(fd)
                raise
            else:
                return cls(path, fd)
        raise BlockingIOError(f"all {MAX_SLOTS} slots of {folder} are taken")

    def release(self) -> None:
        os.close(self._lock_fd)


def _write_all(fd: int, data: memoryview) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
