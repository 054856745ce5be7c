"""Pins compute threads to CPUs on a machine with several NUMA nodes.

    thread         0   1   2   3       of the pool; each begins with its own part of every operator
    NUMA node      0   0   1   1
    a weight     | 0     | 1     |     allocated on the nodes of the threads that read its parts

Called once, before weights are loaded; see source/runtime/placing.cpp. Otherwise threads run
anywhere, and the system places memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Sequence

WORD = 64

_of_process: dict[str, ctypes.CDLL] = {}


def place_threads(library: ctypes.CDLL, places: Sequence[Collection[int]]) -> None:
    """Pin each compute thread to its CPUs from its next pass on; the first is the calling thread.
    Without `places` nothing changes."""
    num_words = max((max(cpus) // WORD + 1 for cpus in places), default=0)
    masks = (ctypes.c_uint64 * (len(places) * num_words))()
    for thread, cpus in enumerate(places):
        for cpu in cpus:
            masks[thread * num_words + cpu // WORD] |= 1 << cpu % WORD
    library.baton_place_threads(
        ctypes.c_int64(len(places)), ctypes.c_int64(num_words), ctypes.byref(masks)
    )
    if places:
        _of_process["library"] = library
    else:
        _of_process.clear()


def touch(address: int, num_bytes: int) -> None:
    """Place memory that nobody has written yet on the nodes of the threads that read its parts."""
    library = _of_process.get("library")
    if library is not None:
        library.baton_touch(ctypes.c_void_p(address), ctypes.c_int64(num_bytes))
