"""Whole numbers of 4 or 8 bits, several to a word of 32: the first in the lowest bits.

They are taken apart byte by byte, the lowest first, as every machine that we run on keeps words.
"""

from __future__ import annotations

import torch
from torch import Tensor

WORD_BITS = 32


def per_word(bits: int) -> int:
    return WORD_BITS // bits


def unpack(words: Tensor, bits: int) -> Tensor:
    """int32 [R, C] -> uint8 [R, C * 32 / bits]"""
    octets = octets_of(words).flatten(1)
    if bits == 8:
        return octets
    return torch.stack((octets & 15, octets >> 4), dim=-1).flatten(1)


def octets_of(words: Tensor) -> Tensor:
    """[R, C] -> uint8 [R, C, 4]; one number alone is contiguous with any stride."""
    return words.contiguous().unsqueeze(-1).view(torch.uint8)


def in_groups(
    items: Tensor, zeros: Tensor | int, scales: Tensor, groups: Tensor | None = None
) -> Tensor:
    """(items - zeros) * scales, of uint8 [R, K] and zeros and scales [R, G] -> float32 [R, K].

    `groups` [K] says which each input belongs to; without it neighbours share one.
    """
    width, num_groups = items.shape[1], scales.shape[1]
    if groups is None and width % num_groups:
        groups = torch.arange(width) // -(-width // num_groups)
    if groups is not None:
        subtrahend = zeros if isinstance(zeros, int) else zeros.float()[:, groups]
        return (items.float() - subtrahend) * scales[:, groups]
    wide = items.float().view(len(items), num_groups, -1)
    wide -= zeros if isinstance(zeros, int) else zeros.float().unsqueeze(-1)
    wide *= scales.unsqueeze(-1)
    return wide.view(len(items), width)
