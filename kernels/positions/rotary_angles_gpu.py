# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
# mypy: no-warn-return-any
"""Cosines and sines of rotary positions, in one launch instead of four.

One program handles a few tokens. The device's sine function is used, which reduces large angles
exactly.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TOKENS = 16


def rotary_angles(positions: Tensor, frequencies: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    """positions [T] and frequencies [R/2] -> cos and sin, float32 [T, R/2] each."""
    num_tokens, half = len(positions), len(frequencies)
    cos, sin = torch.empty(2, num_tokens, half, dtype=torch.float32, device=positions.device)
    if num_tokens:
        _angles[triton.cdiv(num_tokens, TOKENS),](
            positions, frequencies, cos, sin, num_tokens, factor,
            HALF=half, COLUMNS=triton.next_power_of_2(half), TOKENS=TOKENS, num_warps=4,
        )  # fmt: skip
    return cos, sin


@triton.jit(do_not_specialize=["num_tokens"])
def _angles(
    positions, frequencies, cos, sin, num_tokens, factor,
    HALF: tl.constexpr, COLUMNS: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    token = (tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)).to(tl.int64)
    columns = tl.arange(0, COLUMNS)
    position = tl.load(positions + token, mask=token < num_tokens, other=0).to(tl.float32)
    frequency = tl.load(frequencies + columns, mask=columns < HALF, other=0.0).to(tl.float32)
    angle = position[:, None] * frequency[None, :]
    at = token[:, None] * HALF + columns[None, :]
    kept = (token < num_tokens)[:, None] & (columns < HALF)[None, :]
    tl.store(cos + at, tl.cos(angle) * factor, mask=kept)
    tl.store(sin + at, tl.sin(angle) * factor, mask=kept)
