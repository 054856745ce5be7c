"""Releases the memory of tensors that are mapped from a file, while the file stays mapped.

Pages that were read count as memory of this process until the file is closed, and a checkpoint is
as large as the model. If a released page is used again, it is read again.
"""

from __future__ import annotations

import ctypes
import mmap

from torch import Tensor


def give_back(tensor: Tensor) -> None:
    """Let the kernel drop a tensor's pages. They must be mapped from a file and never have been
    written, as changes would be lost."""
    if not hasattr(mmap, "MADV_DONTNEED"):
        return
    first = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (tensor.data_ptr() + tensor.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if first < end:
        madvise = ctypes.CDLL(None).madvise
        madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        madvise(first, end - first, mmap.MADV_DONTNEED)  # only advice: a failure does no harm
