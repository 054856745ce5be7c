"""Memory that this process has freed stays with it, to be used again.

A message of a few MiB is allocated, filled and freed; given back to the system each time, it comes
back as new pages, each of which costs a fault and is zeroed first: more than to copy into it. KV of
256 MiB by gRPC took 80,000 faults, and a third of the CPU of both ends.

The C library of GNU learns the same by itself from the first block of 32 MiB that is freed. It
changes no answer, and concerns the whole process: it is for who owns one, and not where the
environment says already what the library shall do.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping

MAPPED_FROM_BYTES = 8 << 20
"""Larger blocks are mappings of their own, which go back at once. A piece of KV has 2 MiB."""
KEPT_BYTES = 2 * MAPPED_FROM_BYTES
"""Free memory at the end of a heap, of which a process has one for each thread, or several. More
of it goes back; a thread's heap ends after 64 MiB, and would keep all of so many."""
BY_OPERATOR = (
    "GLIBC_TUNABLES",
    "MALLOC_ARENA_MAX",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TRIM_THRESHOLD_",
)
"""Who has set one of these in the environment decides."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h


def keep_freed_memory(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the C library was told to."""
    if any(environ.get(name) for name in BY_OPERATOR):
        return False
    tell = getattr(ctypes.CDLL(None), "mallopt", None)
    if tell is None:  # another library than GNU's
        return False
    return bool(tell(_M_MMAP_THRESHOLD, MAPPED_FROM_BYTES) and tell(_M_TRIM_THRESHOLD, KEPT_BYTES))
