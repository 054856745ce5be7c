"""Maps files that processes share as memory, so aligned that pages of 2 MB fit, and moves them onto
such.

    mapped     the file begins on small pages, as always
    collapse   its content is copied onto a huge page, for all who map it (Linux 6.1 and later)

Without torch, as programs that only inspect a machine use it, too.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import weakref
from functools import cache
from typing import Any

HUGE_PAGE = 2 << 20
MADV_COLLAPSE = 25
"""The advice of linux/mman.h. It asks neither for `transparent_hugepage/shmem_enabled` nor for an
`madvise` before the first write, with which the first token in each region would wait for 2 MB of
zeros."""
MAP_FIXED = 0x10
_NOWHERE = ctypes.c_void_p(-1).value
_LOWEST_BIT = bytes(byte & 1 for byte in range(256))


def mapped(file: int, num_bytes: int, *, is_writable: bool = True) -> memoryview:
    """Map a file from its beginning. It stays mapped as long as the returned memory is referenced.

    Raises OSError, and ValueError for more bytes than the file has: touching them would kill the
    process.
    """
    access = mmap.PROT_READ | (mmap.PROT_WRITE if is_writable else 0)
    libc = _libc()
    if libc is None or num_bytes < HUGE_PAGE:
        return memoryview(mmap.mmap(file, num_bytes, mmap.MAP_SHARED, access))
    if (length := os.fstat(file).st_size) < num_bytes:
        raise ValueError(f"{num_bytes} bytes cannot be mapped of a file that has {length}")
    size = -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
    room = libc.mmap(None, size + HUGE_PAGE, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if room == _NOWHERE:
        raise _failed("there is no room to map a file")
    first = -(-room // HUGE_PAGE) * HUGE_PAGE
    if libc.mmap(first, size, access, mmap.MAP_SHARED | MAP_FIXED, file, 0) == _NOWHERE:
        failed = _failed("a file cannot be mapped")
        libc.munmap(room, size + HUGE_PAGE)
        raise failed
    for begin, end in ((room, first), (first + size, room + size + HUGE_PAGE)):
        if begin < end:
            libc.munmap(begin, end - begin)
    array = (ctypes.c_char * num_bytes).from_address(first)
    # Do not unmap at interpreter exit: threads may still read the memory.
    weakref.finalize(array, libc.munmap, first, size).atexit = False
    memory = memoryview(array).cast("B")
    return memory if is_writable else memory.toreadonly()


def address_of(memory: memoryview) -> int:
    """The address of writable memory."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def collapse(address: int, num_bytes: int) -> int:
    """Returns 0 or the errno; EINVAL also if nothing was written yet. Only threads that touch this
    memory wait meanwhile."""
    libc = _libc()
    if libc is None:
        return errno.EINVAL
    return ctypes.get_errno() if libc.madvise(address, num_bytes, MADV_COLLAPSE) else 0


def num_resident(address: int, num_bytes: int) -> int:
    """Bytes of mapped memory that are resident, because they were written or read."""
    libc = _libc()
    pages = (ctypes.c_ubyte * (num_bytes // mmap.PAGESIZE))()
    if libc is None or libc.mincore(address, num_bytes, pages):
        return 0
    return sum(bytes(pages).translate(_LOWEST_BIT)) * mmap.PAGESIZE


def can_collapse() -> bool:
    """Whether the kernel supports `collapse`, found out by trying it on 2 MB."""
    if not hasattr(os, "memfd_create"):
        return False
    file = os.memfd_create("baton-huge-page", os.MFD_CLOEXEC)
    try:
        os.ftruncate(file, HUGE_PAGE)
        memory = mapped(file, HUGE_PAGE)
        memory[0] = 1
        return collapse(address_of(memory), HUGE_PAGE) == 0
    except OSError:
        return False
    finally:
        os.close(file)


@cache
def _libc() -> Any:
    """The C library; None if the system does not map memory as Linux does."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    size, pointer, number = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_int
    libc.mmap.argtypes = (pointer, size, number, number, number, ctypes.c_long)
    libc.mmap.restype = pointer
    libc.munmap.argtypes = (pointer, size)
    libc.madvise.argtypes = (pointer, size, number)
    libc.mincore.argtypes = (pointer, size, pointer)
    return libc


def _failed(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")
