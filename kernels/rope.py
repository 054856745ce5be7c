"""Rotary positions (Su et al. 2021), in the layout of Hugging Face checkpoints.

Dimension i is paired with dimension i + H/2, and the pair is turned by the token's angle:

    y[i]       = x[i] cos[i] - x[i + H/2] sin[i]
    y[i + H/2] = x[i + H/2] cos[i] + x[i] sin[i]          i < H/2

T tokens, N query heads, K key heads, H head width. cos and sin are float32, and so is the
arithmetic; results are stored in the dtype of the inputs.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Turn q [T, N, H] and k [T, K, H] by the angles whose cos and sin are [T, H/2]."""
    half = q.shape[-1] // 2
    if cos.shape != (q.shape[0], half) or sin.shape != cos.shape or k.shape[::2] != q.shape[::2]:
        raise ValueError(f"shapes do not fit: {q.shape=} {k.shape=} {cos.shape=} {sin.shape=}")
    # y = x * [cos, cos] + roll(x) * [-sin, sin]: three operations a tensor, whatever the width.
    cos = torch.cat((cos, cos), dim=-1).unsqueeze(1)  # [T, 1, H]
    sin = torch.cat((-sin, sin), dim=-1).unsqueeze(1)
    return _turn(q, cos, sin), _turn(k, cos, sin)


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return (x * cos).addcmul_(x.roll(x.shape[-1] // 2, dims=-1), sin).to(x.dtype)


def reference(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The definition, for one tensor x [T, heads, H]."""
    low, high = x.float().chunk(2, dim=-1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1).to(x.dtype)
