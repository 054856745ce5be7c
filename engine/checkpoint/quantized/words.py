"""Unpacks 4-bit and 8-bit integers from 32-bit words, which hold the first one in the lowest bits.

Words are read as bytes, the lowest first: all supported machines are little-endian.
"""

from __future__ import annotations

import torch
from torch import Tensor

WORD_BITS = 32


def per_word(bits: int) -> int:
    """Number of integers in a word."""
    return WORD_BITS // bits


def unpack(words: Tensor, bits: int) -> Tensor:
    """Integers from words: int32 [R, C] -> uint8 [R, C * 32 / bits]."""
    octets = octets_of(words).flatten(1)
    if bits == 8:
        return octets
    return torch.stack((octets & 15, octets >> 4), dim=-1).flatten(1)


def octets_of(words: Tensor) -> Tensor:
    """Bytes from words: [R, C] -> uint8 [R, C, 4]."""
    # The dimension is added because `view` needs a last stride of 1, which `contiguous` does not
    # give to a single number.
    return words.contiguous().unsqueeze(-1).view(torch.uint8)


def in_groups(
    items: Tensor, zeros: Tensor | int, scales: Tensor, groups: Tensor | None = None
) -> Tensor:
    """Dequantize: (items - zeros) * scales, float32 [R, K], from items uint8 [R, K] and zeros and
    scales [R, G]. `groups` [K] is the group of each input; without it groups are consecutive
    inputs."""
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
