"""Rotary positions (Su et al. 2021), in the layout of Hugging Face checkpoints.

Of the first R dimensions of a head, i is paired with i + R/2; the pair is rotated by the token's
angle; dimensions from R on stay as they are:

    y[i]       = x[i] cos[i] - x[i + R/2] sin[i]
    y[i + R/2] = x[i + R/2] cos[i] + x[i] sin[i]          i < R/2

T tokens, N query heads, K key heads, H head width, R <= H. cos and sin are float32, and so is the
arithmetic; results are stored in the dtype of the inputs.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate q [T, N, H] and k [T, K, H] by the angles with these cos and sin [T, R/2]."""
    rotary = 2 * cos.shape[-1]
    if (
        cos.shape[:-1] != q.shape[:1]
        or sin.shape != cos.shape
        or k.shape[::2] != q.shape[::2]
        or rotary > q.shape[-1]
    ):
        raise ValueError(f"shapes do not fit: {q.shape=} {k.shape=} {cos.shape=} {sin.shape=}")
    # y = x * [cos, cos] + roll(x) * [-sin, sin]: three operations per tensor, whatever the width.
    cos = torch.cat((cos, cos), dim=-1).unsqueeze(1)  # [T, 1, R]
    sin = torch.cat((-sin, sin), dim=-1).unsqueeze(1)
    if rotary == q.shape[-1]:
        return _turn(q, cos, sin), _turn(k, cos, sin)
    return _turn_part(q, cos, sin), _turn_part(k, cos, sin)


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return (x * cos).addcmul_(x.roll(x.shape[-1] // 2, dims=-1), sin).to(x.dtype)


def _turn_part(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    rotary = cos.shape[-1]
    return torch.cat((_turn(x[..., :rotary], cos, sin), x[..., rotary:]), dim=-1)


def reference(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The definition, for one tensor x [T, heads, H]."""
    half = cos.shape[-1]
    wide = x.float()
    low, high, rest = wide[..., :half], wide[..., half : 2 * half], wide[..., 2 * half :]
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin, rest), dim=-1).to(x.dtype)
