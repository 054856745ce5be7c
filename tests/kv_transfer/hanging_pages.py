"""Memory whose first use hangs in the kernel until it is let go: `userfaultfd(2)`, of Linux."""

from __future__ import annotations

import asyncio
import ctypes
import mmap
import os
import platform
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import ioctl

_USERFAULTFD = {"x86_64": 323, "aarch64": 282}
_API, _REGISTER = 0xC018AA3F, 0xC020AA00
_API_VERSION = 0xAA
_MISSING_SHMEM, _MINOR_SHMEM = 1 << 5, 1 << 10
_MISSING, _MINOR = 1, 4


class NoHangingPages(Exception):
    """This system, or this user, has none."""


@contextmanager
def hanging(address: int, num_bytes: int) -> Iterator[asyncio.Event]:
    """Within the context, threads that touch this memory, a mapped anonymous file, hang; the event
    is set once one does. They go on behind it. Raises NoHangingPages.

    Nothing else may touch it meanwhile, least of all with the interpreter's lock in its hands.
    """
    if address % mmap.PAGESIZE:
        raise ValueError("it begins within a page")
    libc = ctypes.CDLL(None, use_errno=True)
    number = _USERFAULTFD.get(platform.machine(), -1)
    file = libc.syscall(number, os.O_CLOEXEC | os.O_NONBLOCK)
    if file < 0:
        raise NoHangingPages(os.strerror(ctypes.get_errno()))
    size = -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
    loop, has_hung = asyncio.get_running_loop(), asyncio.Event()
    try:
        try:
            ioctl(file, _API, struct.pack("QQQ", _API_VERSION, _MISSING_SHMEM | _MINOR_SHMEM, 0))
            ioctl(file, _REGISTER, struct.pack("QQQQ", address, size, _MISSING | _MINOR, 0))
        except OSError as error:
            raise NoHangingPages(str(error)) from error
        # What was mapped already would be found without asking.
        libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), mmap.MADV_DONTNEED)
        loop.add_reader(file, has_hung.set)
        yield has_hung
    finally:
        loop.remove_reader(file)
        os.close(file)  # the threads that hang go on
