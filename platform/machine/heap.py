"""Keeps freed memory in the process, for reuse.

Messages of a few MiB are allocated, filled and freed. If the memory is returned to the system each
time, it comes back as new pages, each of which costs a fault and zeroing: more than the copy. KV of
256 MiB over gRPC took 80,000 faults, and a third of the CPU on both ends.

glibc does the same by itself after the first freed block of 32 MiB. The setting affects the whole
process, so it is for programs, not libraries, and is skipped if the environment already configures
malloc.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping

MAPPED_FROM_BYTES = 8 << 20
"""Larger blocks are separate mappings, returned at once. A piece of KV has 2 MiB."""
KEPT_BYTES = 2 * MAPPED_FROM_BYTES
"""The most free memory kept at the end of each heap (arena), of which a process has one per thread
or more; an arena could otherwise keep up to 64 MiB."""
BY_OPERATOR = (
    "GLIBC_TUNABLES",
    "MALLOC_ARENA_MAX",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_TRIM_THRESHOLD_",
)
"""Environment variables by which an operator configures malloc."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h


def keep_freed_memory(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the C library was configured so."""
    if any(environ.get(name) for name in BY_OPERATOR):
        return False
    configure = getattr(ctypes.CDLL(None), "mallopt", None)
    if configure is None:  # another library than GNU's
        return False
    return bool(
        configure(_M_MMAP_THRESHOLD, MAPPED_FROM_BYTES) and configure(_M_TRIM_THRESHOLD, KEPT_BYTES)
    )
