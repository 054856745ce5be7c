"""Pieces of memory that share huge pages, for weights that live as long as their model.

    mapping of 64 MB   [piece][piece ][pie|ce]...      | a page of 2 MB

A 4-bit weight is often smaller than one huge page, and would be on small pages if allocated alone:
a core read 4-bit weights at 24 GB/s from small pages and at 32 GB/s from huge ones. A mapping is
released with the last of its pieces.
"""

from __future__ import annotations

import threading

import torch
from torch import Tensor

from baton.kernels.cpu import huge_pages, thread_places

MAPPING_BYTES = 64 << 20
ALIGNMENT = 64


class SharedPages:
    """The unused rest of the current mapping. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rest = torch.empty(0, dtype=torch.uint8)

    def cut(self, shape: tuple[int, ...]) -> Tensor:
        """Allocate bytes: contiguous, 64-byte aligned. Large pieces get a mapping of their own."""
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
"""The shared pages of this process; weights of several models may share a page."""
