"""File locks between the threads of all gateways that share a folder. Blocks.

    held by another --SHORT_S--> one of the few that may wait longer --LOCK_S--> TimeoutError
                           `---> as many wait already: TimeoutError
    held by another thread of this gateway --LOCK_S--> TimeoutError

A gateway that hangs while it holds a lock thus blocks few threads of others, and only for LOCK_S.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LOCK_S = 5.0
"""The most seconds to wait for a file's lock, which is usually held for milliseconds."""
SHORT_S = 0.1
"""Seconds for which any number of threads may wait; usually enough."""
LOOK_S = 0.005
UNLOCKABLE = frozenset((errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS))
"""Errors of a file system without locks."""


class FileLocks:
    """Thread-safe."""

    def __init__(self, max_waiting: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`max_waiting`: threads that may wait long at once, whichever files they want."""
        self._may_wait = threading.BoundedSemaphore(max_waiting)
        self._clock = clock
        self._own = Counter[Path]()
        """Locks held by threads of this gateway, by file: two while the file is being replaced."""
        self._counting = threading.Lock()

    @contextmanager
    def locked(self, path: Path) -> Iterator[None]:
        """Context in which no other process has this file locked; a missing file cannot be locked.

        The lock is on the file that has this name now; a writer replaces the file within the lock.
        Raises OSError; TimeoutError if the lock is not free in time.
        """
        deadline = self._clock() + LOCK_S
        while (fd := _opened(path)) is not None:
            try:
                self._lock(fd, path, deadline)
                if _is_named(fd, path):
                    with self._held_by_us(path):
                        yield
                    return
            finally:
                os.close(fd)
        yield

    def _lock(self, fd: int, path: Path, deadline: float) -> None:
        """Raises OSError, TimeoutError."""
        while not self._lock_until(fd, min(deadline, self._clock() + SHORT_S)):
            if not self._own[path] or self._clock() > deadline:
                break
        else:
            return
        if not self._may_wait.acquire(blocking=False):
            raise _not_let_go(path, "other threads of this gateway wait for locks already")
        try:
            if not self._lock_until(fd, deadline):
                raise _not_let_go(path, f"it did not let go within {LOCK_S:g} s")
        finally:
            self._may_wait.release()

    @contextmanager
    def _held_by_us(self, path: Path) -> Iterator[None]:
        with self._counting:
            self._own[path] += 1
        try:
            yield
        finally:
            with self._counting:
                self._own[path] -= 1
                if not self._own[path]:
                    del self._own[path]

    def _lock_until(self, fd: int, deadline: float) -> bool:
        """Whether it is locked by then. Raises OSError."""
        while not _try_to_lock(fd):
            if self._clock() > deadline:
                return False
            time.sleep(LOOK_S)
        return True


def _not_let_go(path: Path, why: str) -> TimeoutError:
    """With the file's name, which is for the operator alone, in `filename`."""
    reason = (
        f"a gateway has locked a file, and {why}; if that goes on, look for a gateway that "
        "hangs, and restart it"
    )
    return TimeoutError(errno.ETIMEDOUT, reason, str(path))


def _try_to_lock(fd: int) -> bool:
    """Raises OSError."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in UNLOCKABLE:
            raise
    return True


def _opened(path: Path) -> int | None:
    with suppress(FileNotFoundError):
        return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    return None


def _is_named(fd: int, path: Path) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(fd), path.lstat())
    return False
