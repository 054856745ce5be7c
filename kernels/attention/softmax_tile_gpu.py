# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
# mypy: no-warn-return-any
"""Attention to the keys of one tile, as the softmax over all tiles goes on (Milakov, Gimelshein).

    s      = scores of the tile, times log2 e             [rows, keys]
    top'   = max(top, largest s)                          [rows]
    total' = total 2^(top - top') + sum 2^(s - top')      [rows]
    acc'   = acc   2^(top - top') +     2^(s - top') v    [rows, columns]

Powers are of two because that is what the device computes. Items of 8 bits are multiplied as they
are, which is exact in every wider dtype, and scores and weights scaled instead of keys and values.
"""

from __future__ import annotations

import triton
import triton.language as tl

from baton.kernels.gpu.dot import dot

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def first_seen(position, window, IS_CHUNKED: tl.constexpr):
    """The first key that a query sees through a window; see kernels/paging/window.py."""
    if IS_CHUNKED:
        return position // window * window
    else:
        return tl.maximum(position + 1 - window, 0)


@triton.jit
def split_of_first(first, SPLIT: tl.constexpr, NUM_FIRST: tl.constexpr):
    """The first split that is read: that of the window or, for the first tokens, one before it."""
    if NUM_FIRST > 0:
        return tl.maximum(first // SPLIT - 1, 0)
    else:
        return first // SPLIT


@triton.jit
def scored(products, scale, softcap, HAS_SOFTCAP: tl.constexpr):
    """q.k -> score times log2 e."""
    if HAS_SOFTCAP:
        # tanh x = 1 - 2 / (1 + e^2x), right at both ends, where e^2x is 0 or infinite
        turned = tl.exp2(products * (scale / softcap * 2.0 * LOG2_E))
        return (1.0 - 2.0 / (1.0 + turned)) * (softcap * LOG2_E)
    else:
        return products * (scale * LOG2_E)


@triton.jit
def first_top(sinks, heads, inside, HAS_SINKS: tl.constexpr):
    """(top, total) before any key. A sink is a score without a value, there from the start."""
    if HAS_SINKS:
        top = tl.load(sinks + heads, mask=inside, other=0.0).to(tl.float32) * LOG2_E
        return top, tl.where(inside, 1.0, 1.0)
    else:
        return tl.where(inside, float("-inf"), float("-inf")), tl.where(inside, 0.0, 0.0)


@triton.jit
def weigh(acc, top, total, scores, visible, v, v_scales, HAS_SCALES: tl.constexpr):
    """One step of the recurrence; `visible` fits [rows, keys]."""
    scores = tl.where(visible, scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, 1))
    # A row that has seen nothing yet stays at -inf, which may not be taken from itself.
    base = tl.where(new_top == float("-inf"), 0.0, new_top)
    weights = tl.exp2(scores - base[:, None])
    fade = tl.exp2(top - base)
    total = total * fade + tl.sum(weights, 1)
    if HAS_SCALES:
        weights = weights * v_scales[None, :]
    return dot(weights.to(v.dtype), v, acc * fade[:, None]), new_top, total
