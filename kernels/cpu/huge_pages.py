"""Memory on pages of 2 MB for large tensors that every step reads from end to end.

A core's TLB holds few entries: on small pages it would wait for page walks while it streams. If
threads are pinned, memory is allocated on the NUMA nodes of the threads that read its parts
(thread_places.py).
"""

from __future__ import annotations

import mmap

import torch
from torch import Tensor

from baton.kernels.cpu import thread_places

HUGE_PAGE = 2 << 20


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """An uninitialized tensor: contiguous, 64-byte aligned, on the CPU, private to this process."""
    made = untouched(shape, dtype)
    if made.nbytes >= HUGE_PAGE:
        thread_places.touch(made.data_ptr(), made.nbytes)
    return made


def untouched(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """The same, not placed on NUMA nodes before it is first written; for memory that is cut into
    pieces."""
    num_bytes = torch.Size(shape).numel() * dtype.itemsize
    if num_bytes < HUGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(shape, dtype=dtype)
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
