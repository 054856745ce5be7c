# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
# mypy: no-warn-return-any
"""XXH3-64 of many units on a GPU: see kernels/paging/checksum.py for the definition.

A program processes one unit: a block of 16 stripes of 8 lanes is one tile, whose stripes are added
in a tree (sums modulo 2^64 have no order), while the next block is being loaded.
"""

from __future__ import annotations

import struct
from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton.kernels.paging.checksum import (
    AVALANCHE,
    P32_1,
    P64_1,
    SECRET,
    STRIPE_BYTES,
    SUMS,
    WORD_BYTES,
    signed,
)

_P32_1, _P64_1 = tl.constexpr(P32_1), tl.constexpr(P64_1)
_AVALANCHE = tl.constexpr(AVALANCHE)


def checksums(units: Tensor) -> Tensor:
    """uint8 [U, unit bytes] -> int64 [U]. Raises ValueError unless units are whole 64-bit words."""
    num_units, unit_bytes = units.shape
    if unit_bytes % WORD_BYTES or units.stride(0) % WORD_BYTES or units.stride(1) != 1:
        raise ValueError(f"units of {unit_bytes} bytes, {units.stride()} apart")
    out = torch.empty(num_units, dtype=torch.int64, device=units.device)
    words = units.view(torch.int64)
    _sum_up[num_units,](
        words, words.stride(0), _constants(units.device), out, unit_bytes // WORD_BYTES,
        num_warps=1, num_stages=4,
    )  # fmt: skip
    return out


@cache
def _constants(device: torch.device) -> Tensor:
    """The secret by words [24]; its words from bytes 121 and 11 on, [8] each; the initial sums
    [8]."""
    last = len(SECRET) - STRIPE_BYTES - 7
    parts = SECRET + SECRET[last : last + STRIPE_BYTES] + SECRET[11 : 11 + STRIPE_BYTES]
    words = struct.unpack(f"<{len(parts) // WORD_BYTES}Q", parts) + SUMS
    return torch.tensor([signed(word) for word in words], device=device)


@triton.jit
def _sum_up(words, stride, constants, out, num_words):
    unit = tl.program_id(0).to(tl.int64)
    words += unit * stride
    lane = tl.arange(0, 8)
    stripe = tl.arange(0, 16)[:, None]
    secret = tl.load(constants + stripe + lane[None, :])
    scramble = tl.load(constants + 16 + lane).to(tl.uint64, bitcast=True)
    sums = tl.load(constants + 40 + lane).to(tl.uint64, bitcast=True)
    at = stripe * 8 + lane[None, :]
    swapped = stripe * 8 + (lane ^ 1)[None, :]
    for start in range(0, num_words, 128):
        # The last stripe of a unit does not belong to its block; it is added at the end.
        is_full = num_words - start > 128
        num_stripes = tl.where(is_full, 16, (num_words - start - 1) // 8)
        inside = stripe < num_stripes
        sums += _added(words + start, at, swapped, secret, inside)
        if is_full:
            sums = (sums ^ (sums >> 47) ^ scramble) * _P32_1
    key = tl.load(constants + 24 + lane)[None, :]
    last = words + num_words - 8
    sums += _added(last, at, swapped, key, stripe == 0)
    mixed = sums ^ tl.load(constants + 32 + lane).to(tl.uint64, bitcast=True)
    even, odd = tl.split(tl.reshape(mixed, [4, 2]))
    folded = tl.sum(tl.umulhi(even, odd) ^ (even * odd), 0)
    total = num_words.to(tl.uint64) * 8 * _P64_1 + folded
    total = (total ^ (total >> 37)) * _AVALANCHE
    total = total ^ (total >> 32)
    tl.store(out + unit, total.to(tl.int64, bitcast=True))


@triton.jit
def _added(words, at, swapped, secret, inside):
    """The terms that the stripes of a tile add to the sums [8]."""
    data = tl.load(words + at, mask=inside, other=0)
    beside = tl.load(words + swapped, mask=inside, other=0)
    key = (data ^ secret).to(tl.uint64, bitcast=True)
    product = (key & 0xFFFFFFFF) * (key >> 32)
    return tl.sum(tl.where(inside, beside.to(tl.uint64, bitcast=True) + product, 0), 0)
