# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
# mypy: no-warn-return-any
"""Norm, rotation and the store of latents into the cache, in one launch.

    program (token, 0)        norm of the latent, rotation of the rest  --> the arena
    program (token, g > 0)    rotation of the ends of some queries      --> q_rope [T, N, R]

Bound by the launch when few tokens decode. Each step rounds to the dtype of q, as the definition
does. The letters are those of kernels/cache_write/latent_write.py.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton.kernels.cache_write.rotation import LatentNorm, Rotation
from baton.kernels.gpu.owner import owner_of
from baton.kernels.paging.sequences import Sequences

HEADS = 16
"""Query heads of a token that one program rotates."""


def latent_write(  # as the kernel
    q: Tensor,
    kv: Tensor,
    arena: Tensor,
    sequences: Sequences,
    *,
    norm: LatentNorm,
    rotation: Rotation,
    is_interleaved: bool,
) -> Tensor:
    tokens, num_heads, width = q.shape
    cos, sin = (part.contiguous() for part in rotation)
    half, latent = cos.shape[1], len(norm.weight)
    q_rope = torch.empty(tokens, num_heads, 2 * half, dtype=q.dtype, device=q.device)
    _write[tokens, 1 + triton.cdiv(num_heads, HEADS)](
        q, *q.stride()[:2], width - 2 * half, q_rope, num_heads, kv, kv.stride(0),
        arena, arena.stride(0), sequences.block_tables, sequences.block_tables.stride(0),
        sequences.positions, sequences.query_starts, sequences.num_requests,
        cos, sin, norm.weight, norm.eps,
        LATENT=latent, LATENT_COLUMNS=triton.next_power_of_2(latent),
        HALF=half, HALF_COLUMNS=triton.next_power_of_2(half), HEADS_AT_ONCE=HEADS,
        BLOCK_SIZE=sequences.block_size, STEP=2 if is_interleaved else 1,
        APART=1 if is_interleaved else half, num_warps=4 if latent > 256 else 1,
    )  # fmt: skip
    return q_rope


@triton.jit
def _rotated(low, high, cos, sin):
    """Rotates pairs (low, high), float32 vectors, by angles with these cosines and sines."""
    return low * cos - high * sin, high * cos + low * sin


@triton.jit
def _nan_if_infinite(x):
    return tl.where(tl.abs(x) < float("inf"), x, float("nan"))


@triton.jit(do_not_specialize=["table_stride", "num_requests"])
def _write(
    q, token_stride, head_stride, first_rotated, q_rope, num_heads, kv, kv_stride,
    arena, block_stride, tables, table_stride, positions, query_starts, num_requests,
    cos, sin, weight, eps,
    LATENT: tl.constexpr, LATENT_COLUMNS: tl.constexpr, HALF: tl.constexpr,
    HALF_COLUMNS: tl.constexpr, HEADS_AT_ONCE: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    STEP: tl.constexpr, APART: tl.constexpr,
):  # fmt: skip
    token, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    pair = tl.arange(0, HALF_COLUMNS)
    rotates = pair < HALF
    c = tl.load(cos + token * HALF + pair, mask=rotates, other=1.0)
    s = tl.load(sin + token * HALF + pair, mask=rotates, other=0.0)
    if group == 0:
        position = tl.load(positions + token)
        request = owner_of(query_starts, num_requests, token)
        at = tables + request * table_stride + position // BLOCK_SIZE
        block = tl.load(at).to(tl.int64)
        width: tl.constexpr = LATENT + 2 * HALF
        kept = arena + block * block_stride + (position % BLOCK_SIZE) * width
        column = tl.arange(0, LATENT_COLUMNS)
        inside = column < LATENT
        x = tl.load(kv + token * kv_stride + column, mask=inside, other=0.0).to(tl.float32)
        factor = tl.rsqrt(tl.sum(x * x) / LATENT + eps)
        weights = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
        normed = _nan_if_infinite(x * factor * weights)
        tl.store(kept + column, normed.to(arena.dtype.element_ty), mask=inside)
        at = kv + token * kv_stride + LATENT + pair * STEP
        low = tl.load(at, mask=rotates, other=0.0).to(tl.float32)
        high = tl.load(at + APART, mask=rotates, other=0.0).to(tl.float32)
        low, high = _rotated(low, high, c, s)
        at = kept + LATENT + pair * STEP
        tl.store(at, _nan_if_infinite(low).to(arena.dtype.element_ty), mask=rotates)
        tl.store(at + APART, _nan_if_infinite(high).to(arena.dtype.element_ty), mask=rotates)
        return
    head = (group - 1) * HEADS_AT_ONCE + tl.arange(0, HEADS_AT_ONCE)
    both = (head < num_heads)[:, None] & rotates[None, :]
    at = q + token * token_stride + (head * head_stride)[:, None] + first_rotated
    at += (pair * STEP)[None, :]
    low = tl.load(at, mask=both, other=0.0).to(tl.float32)
    high = tl.load(at + APART, mask=both, other=0.0).to(tl.float32)
    low, high = _rotated(low, high, c[None, :], s[None, :])
    at = q_rope + ((token * num_heads + head) * 2 * HALF)[:, None] + (pair * STEP)[None, :]
    tl.store(at, low.to(q_rope.dtype.element_ty), mask=both)
    tl.store(at + APART, high.to(q_rope.dtype.element_ty), mask=both)
