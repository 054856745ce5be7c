"""Memory for what is read from end to end in every step: on pages of 2 MB where it is large.

A core looks up few pages at a time; on small ones it waits for look-ups while it streams. Where
threads have places it lies beside those that read its parts (thread_places.py).
"""

from __future__ import annotations

import mmap

import torch
from torch import Tensor

from baton.kernels.cpu import thread_places

HUGE_PAGE = 2 << 20


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Contiguous, 64-byte aligned, on the CPU; it belongs to this process alone."""
    made = untouched(shape, dtype)
    if made.nbytes >= HUGE_PAGE:
        thread_places.touch(made.data_ptr(), made.nbytes)
    return made


def untouched(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """The same, which lies where it is first written: of what is cut in pieces."""
    num_bytes = torch.Size(shape).numel() * dtype.itemsize
    if num_bytes < HUGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.empty(shape, dtype=dtype)
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
