# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
# mypy: no-warn-return-any
"""A mixture of experts in four launches. Only the numbers of pairs are sorted in memory, not rows.

    gate, up    loads rows of x at their tokens             [T, D] -> [P, 2F] by expert
    gating                                                  [P, 2F] -> [P, F] by expert
    down        stores rows at their pairs                  [P, F] -> [P, D] by pair
    combine     weighted sum of choices, plus shared        [P, D] -> [T, D]

As defined in kernels/experts/moe.py: the choices of a token are added in their order, in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton.kernels.experts.grouped_linear_gpu import Rows, grouped_tiles, has_library
from baton.kernels.experts.quantized_experts import QuantizedExperts
from baton.kernels.experts.routing import Routed

COLUMNS = 1024
Biases = tuple[Tensor | None, Tensor | None]
"""Biases [E, 2F] of gate and up, and [E, D] of down."""


def takes(x: Tensor, gate_up: object, routed: Routed, *, is_batch_invariant: bool) -> bool:
    """Whether to use these kernels: not for so many pairs that sorting rows for a library is
    faster. If results must be batch-invariant they are always used, as a library's kernel depends
    on the number of pairs."""
    if isinstance(gate_up, QuantizedExperts):
        return True
    is_many = isinstance(gate_up, Tensor) and has_library(x, gate_up, routed.pairs.numel())
    return isinstance(gate_up, Tensor) and (is_batch_invariant or not is_many)


def moe(
    x: Tensor,
    experts: tuple[Tensor | QuantizedExperts, Tensor | QuantizedExperts],
    biases: Biases,
    gating: Callable[[Tensor], Tensor],
    routed: Routed,
    shared: tuple[Tensor | None, Tensor | None],
    *,
    is_input_scaled: bool,
    is_batch_invariant: bool = False,
) -> Tensor:
    """x [T, D] -> [T, D]. `experts`: weights of gate and up, and of down. `shared`: the shared
    expert's output [T, D] and its gate [T, 1], whose sigmoid is its weight. `is_batch_invariant`:
    results are batch-invariant."""
    pairs, shares = routed.pairs.flatten(), routed.shares.flatten().contiguous()
    num_choices = routed.experts.shape[1]
    given = shares if is_input_scaled else None
    source = Rows(pairs=pairs, num_choices=num_choices, shares=given)
    multiply = partial(_multiply, is_batch_invariant=is_batch_invariant)
    inner = multiply(x, experts[0], routed.stops, source, biases[0])
    target = Rows(pairs=pairs, is_scattered=True)
    by_pair = multiply(gating(inner), experts[1], routed.stops, target, biases[1])
    out = torch.empty_like(x)
    width = x.shape[1]
    if len(x):
        _add_up[len(x), triton.cdiv(width, COLUMNS)](
            by_pair, routed.experts, None if is_input_scaled else shares,
            *(None if part is None else part.contiguous() for part in shared),
            out, width, len(routed.stops), NUM_CHOICES=num_choices, COLUMNS=COLUMNS, num_warps=4,
        )  # fmt: skip
    return out


def _multiply(
    x: Tensor,
    experts: Tensor | QuantizedExperts,
    stops: Tensor,
    rows_of: Rows,
    bias: Tensor | None,
    *,
    is_batch_invariant: bool,
) -> Tensor:
    if isinstance(experts, QuantizedExperts):
        return experts.multiply_pairs(
            x, stops, rows_of, bias, is_batch_invariant=is_batch_invariant
        )
    return grouped_tiles(x, experts, stops, rows_of, bias, is_batch_invariant=is_batch_invariant)


@triton.jit
def _add_up(
    by_pair, experts, shares, shared, shared_gate, out, width, num_experts,
    NUM_CHOICES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    total = tl.zeros([COLUMNS], tl.float32)
    for choice in tl.static_range(NUM_CHOICES):
        pair = token * NUM_CHOICES + choice
        # Numbers beyond the last expert belong to other ranks, and nothing was computed for them.
        is_own = tl.load(experts + pair) < num_experts
        row = tl.load(by_pair + pair * width + column, mask=inside & is_own, other=0.0)
        share = 1.0
        if shares is not None:
            share = tl.where(is_own, tl.load(shares + pair), 0.0)
        total += share * row.to(tl.float32)
    if shared is not None:
        of_all = tl.load(shared + token * width + column, mask=inside, other=0.0).to(tl.float32)
        if shared_gate is not None:
            of_all *= 1.0 / (1.0 + tl.exp(-tl.load(shared_gate + token).to(tl.float32)))
        total += of_all
    tl.store(out + token * width + column, total.to(out.dtype.element_ty), mask=inside)
