"""Pieces of memory on huge pages, many to a page, for weights that stay as long as their model.

    mapping of 64 MB   [piece][piece ][pie|ce]...      | a page of 2 MB

A weight of four bits is often less than one huge page, and alone would lie on small ones: there
four bits were read at 24 GB/s by a core that read 32 from huge pages. A mapping is given back when
the last of its pieces is.
"""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from baton.kernels.cpu import huge_pages, thread_places

MAPPING_BYTES = 64 << 20
ALIGNMENT = 64


class SharedPages:
    """What is left of the mapping that pieces are cut from. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rest = torch.empty(0, dtype=torch.uint8)

    def cut(self, shape: tuple[int, ...]) -> Tensor:
        """Bytes, contiguous, 64-byte aligned. What is large gets a mapping of its own."""
        num_bytes = torch.Size(shape).numel()
        if num_bytes > MAPPING_BYTES // 4:
            return huge_pages.empty(shape, torch.uint8)
        with self._lock:
            if num_bytes > len(self._rest):
                self._rest = huge_pages.untouched((MAPPING_BYTES,), torch.uint8)
            piece = self._rest[:num_bytes]
            self._rest = self._rest[-(-num_bytes // ALIGNMENT) * ALIGNMENT :]
        thread_places.touch(piece.data_ptr(), piece.nbytes)
        return piece.view(shape)


PAGES = SharedPages()
"""The pages of this process: weights of several models may lie side by side."""
