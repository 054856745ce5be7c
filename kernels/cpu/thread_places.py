"""On which CPUs the threads that compute run, where a machine has several NUMA nodes.

    thread         0   1   2   3       of the pool: each begins with its own part of every operator
    NUMA node      0   0   1   1
    a weight     | 0     | 1     |     touched first, and so had, beside the threads that read it

Told once, before weights are loaded, by whoever knows the machine; see source/runtime/placing.cpp.
Where nobody tells, threads run anywhere and memory is had as the system does it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Sequence

WORD = 64

_of_process: dict[str, ctypes.CDLL] = {}


def place_threads(library: ctypes.CDLL, places: Sequence[Collection[int]]) -> None:
    """From its next pass on, each of the threads that compute runs on its CPUs; the first is who
    calls. Without `places` all stay where they are."""
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
    """Memory that nobody has written yet comes to lie where the threads are that read its parts."""
    library = _of_process.get("library")
    if library is not None:
        library.baton_touch(ctypes.c_void_p(address), ctypes.c_int64(num_bytes))
