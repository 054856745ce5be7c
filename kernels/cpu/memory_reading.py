"""The sum of 64-bit words, modulo 2^64: reading and next to nothing else.

What comes out is of no use; how long it takes over memory that no cache holds tells the bandwidth
that whatever reads weights or KV can have.
"""

from __future__ import annotations

import torch
from torch import Tensor

from baton.kernels.cpu import word_sum as cpu
from baton.kernels.cpu.library import library


def word_sum(words: Tensor) -> int:
    """The sum of contiguous int64 words."""
    if words.dtype is not torch.int64 or not words.is_contiguous():
        raise ValueError(f"int64 words, contiguous, are wanted, not {words.dtype}")
    if words.device.type == "cpu" and library() is not None:
        return cpu.word_sum(words)
    return reference(words)


def reference(words: Tensor) -> int:
    return int(words.sum())
