# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
# mypy: no-warn-return-any
"""One step of online softmax (Milakov, Gimelshein): attention to the keys of one more tile.

    s      = scores of the tile, times log2 e             [rows, keys]
    top'   = max(top, largest s)                          [rows]
    total' = total 2^(top - top') + sum 2^(s - top')      [rows]
    acc'   = acc   2^(top - top') +     2^(s - top') v    [rows, columns]

Powers of two are used because the hardware computes these. 8-bit items are multiplied unscaled,
which is exact in every wider dtype; scales are applied to scores and weights instead of to keys and
values.
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
    """The first split to read: that of the window or, if first tokens are visible, one before
    it."""
    if NUM_FIRST > 0:
        return tl.maximum(first // SPLIT - 1, 0)
    else:
        return first // SPLIT


@triton.jit
def scored(products, scale, softcap, HAS_SOFTCAP: tl.constexpr):
    """The scores times log2 e, from the products q.k."""
    if HAS_SOFTCAP:
        # tanh x = 1 - 2 / (1 + e^2x), which is right at both ends, where e^2x is 0 or infinite
        turned = tl.exp2(products * (scale / softcap * 2.0 * LOG2_E))
        return (1.0 - 2.0 / (1.0 + turned)) * (softcap * LOG2_E)
    else:
        return products * (scale * LOG2_E)


@triton.jit
def first_top(sinks, heads, inside, HAS_SINKS: tl.constexpr):
    """The initial (top, total), before any key. A sink is included from the start, as a score
    without a value."""
    if HAS_SINKS:
        top = tl.load(sinks + heads, mask=inside, other=0.0).to(tl.float32) * LOG2_E
        return top, tl.where(inside, 1.0, 1.0)
    else:
        return tl.where(inside, float("-inf"), float("-inf")), tl.where(inside, 0.0, 0.0)


@triton.jit
def weigh(acc, top, total, scores, visible, v, v_scales, HAS_SCALES: tl.constexpr):
    """One step of the recurrence; `visible` broadcasts to [rows, keys]."""
    scores = tl.where(visible, scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, 1))
    # The maximum of a row that has seen no key is -inf, and -inf - -inf would be NaN.
    base = tl.where(new_top == float("-inf"), 0.0, new_top)
    weights = tl.exp2(scores - base[:, None])
    fade = tl.exp2(top - base)
    total = total * fade + tl.sum(weights, 1)
    if HAS_SCALES:
        weights = weights * v_scales[None, :]
    return dot(weights.to(v.dtype), v, acc * fade[:, None]), new_top, total
