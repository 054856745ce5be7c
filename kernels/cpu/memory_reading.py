"""Measures memory bandwidth: the sum of 64-bit words modulo 2^64, with hardly any work besides
reading.

The sum itself is not used. The time it takes over memory that is in no cache gives the bandwidth
that is available for reading weights or KV.
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
