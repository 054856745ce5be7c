"""Rotary positions of the last R dimensions of a head; adjacent dimensions are pairs (DeepSeek V4).

    y[H - R + 2i]     = x[2i] cos[i] - x[2i + 1] sin[i]        x counted from H - R on
    y[H - R + 2i + 1] = x[2i + 1] cos[i] + x[2i] sin[i]        i < R/2

Earlier dimensions are unchanged. Where keys are also values, the attention output is rotated
*back*, by the angles of the query token, so that it depends on distances only, as scores do. Heads
may be normalized first: x / sqrt(mean(x^2) + eps).

T tokens, N heads, H head width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from baton.kernels.cpu import operators
from baton.kernels.positions import rope_tail_cpu as cpu


def rope_tail(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    is_back: bool = False,
    unit_eps: float | None = None,
) -> Tensor:
    """x [T, N, H] rotated by angles [T, R/2], in float32."""
    if cos.shape != sin.shape or len(cos) != len(x) or 2 * cos.shape[1] > x.shape[-1]:
        raise ValueError(f"shapes do not fit: {x.shape=} {cos.shape=} {sin.shape=}")
    if operators.runs(x):
        return cpu.rope_tail(x, cos, sin, is_back=is_back, unit_eps=unit_eps)
    return reference(x, cos, sin, is_back=is_back, unit_eps=unit_eps)


def reference(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    *,
    is_back: bool = False,
    unit_eps: float | None = None,
) -> Tensor:
    rotated = 2 * cos.shape[-1]
    cos, sin = cos.unsqueeze(1), (-sin if is_back else sin).unsqueeze(1)
    if unit_eps is not None:
        wide = x.float()
        x = (wide * (wide.square().mean(-1, keepdim=True) + unit_eps).rsqrt()).to(x.dtype)
    tail = x[..., -rotated:].float()
    even, odd = tail[..., 0::2], tail[..., 1::2]
    pairs = torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1)
    return torch.cat((x[..., :-rotated], pairs.flatten(-2).to(x.dtype)), dim=-1)
