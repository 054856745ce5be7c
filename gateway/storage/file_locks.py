"""Locks of files, between the threads of all gateways of a folder. All of it blocks.

    held by another --SHORT_S--> one of the few that may wait longer --LOCK_S--> TimeoutError
                           `---> as many wait already: TimeoutError
    held by another thread of this gateway --LOCK_S--> TimeoutError

A gateway that is stuck while it holds a lock takes few of the others' threads with it, and no
longer than that.
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
"""The most seconds that a file's lock is waited for, which is held for milliseconds."""
SHORT_S = 0.1
"""Any number of threads may wait for so long: each of them in its turn, as a rule."""
LOOK_S = 0.005
UNLOCKABLE = frozenset((errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS))
"""What a file system says that has no locks."""


class FileLocks:
    """From any thread."""

    def __init__(self, max_waiting: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`max_waiting`: threads that may wait long at once, whichever files they want."""
        self._may_wait = threading.BoundedSemaphore(max_waiting)
        self._clock = clock
        self._own = Counter[Path]()
        """Files that threads of this gateway have locked: two, while one of them is replaced."""
        self._counting = threading.Lock()

    @contextmanager
    def locked(self, path: Path) -> Iterator[None]:
        """Within it nobody else, of any process, has this file locked; one that is not there cannot
        be.

        The lock is that of the file which has this name, not of one that it had: whoever replaces
        it does so within. Raises OSError; TimeoutError if it is not to be had.
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
            raise TimeoutError(
                "another gateway keeps a file locked, and others wait for it already"
            )
        try:
            if not self._lock_until(fd, deadline):
                raise TimeoutError("another gateway does not let go of the file's lock")
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
