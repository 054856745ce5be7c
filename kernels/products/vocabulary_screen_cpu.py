"""The operators of source/products/vocabulary_screen.cpp; vocabulary_screen.py has the method."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from baton.kernels.cpu.operators import Call, call, of_dtype, small_rows
from baton.kernels.cpu.shared_pages import PAGES
from baton.kernels.products import quantized_linear_cpu as quantized_linear
from baton.kernels.products.packed_quantized_weight import PANEL
from baton.kernels.products.packed_weight import PackedWeight


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class BoundedHead:
    """An output head W [V, K], exact and in eight bits, with bounds of what rounding left out."""

    weight: PackedWeight
    rounded: Tensor
    """[P, K / 4, 32, 4] bytes, as `Int8Weight` has them."""
    scales: Tensor
    """[P, 32]"""
    errors: Tensor
    """[P, 32]: at least the length of the rounding error of each row of W, with slack."""
    lengths: Tensor
    """[P, 32]: at least the length of each row as rounded, with slack."""
    longest: float
    """At least the length of the longest row of W; not finite if W is not."""
    max_panels: int
    """Most panels of 32 tokens whose logits are computed for a row."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RoundedRows:
    """Rows of x in eight bits, or, if they are few, as sums of two rows in eight bits."""

    coarse: Tensor
    """[S, row_bytes]; see source/products/int8_rows.h."""
    fine: Tensor
    """[S, row_bytes]: what `coarse` leaves out; of many rows, nothing."""
    bounds: Tensor
    """[S, 2]: at least the length of each row, and of what rounding leaves out of it."""


def slack_of(width: int) -> float:
    """Relative; four times what float32 can round in a sum of so many products, and in the few
    steps besides that make a bound."""
    return (width + 8) * 2.0**-22


def bounded(weight: PackedWeight, max_panels: int) -> BoundedHead:
    """Round a head, and bound the errors."""
    num_panels, (_, width) = len(weight.packed), weight.shape
    padded = quantized_linear.padded(width)
    rounded = PAGES.cut((num_panels, padded // 4, PANEL, 4))
    scales, errors, lengths = torch.empty(3, num_panels, PANEL)
    call(
        Call(
            of_dtype("round_head", weight.dtype),
            rows=num_panels,
            inputs={
                "weight": weight.packed,
                "width": width,
                "padded_width": padded,
                "slack": slack_of(width),
            },
            outputs={"rounded": rounded, "scales": scales, "errors": errors, "lengths": lengths},
        )
    )
    return BoundedHead(
        weight=weight,
        rounded=rounded,
        scales=scales,
        errors=errors,
        lengths=lengths,
        longest=float((errors + lengths).max()),  # NaN if one is
        max_panels=max_panels,
    )


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Settings:
    """How each of S rows is drawn: see `Draws` in kernels/sampling/draw_token.py."""

    temperature: Tensor
    """[S] float32; 0 takes the best token."""
    top_k: Tensor
    """[S] int64; 0 is off. Rows with more than 256 cannot be screened."""
    top_p: Tensor
    """[S] float32; 1 is off."""
    least: Tensor
    """[S] float32: the logarithm of min-p."""
    streams: Tensor
    """[S, 4] int64"""


def found_tokens(
    x: Tensor, head: BoundedHead, settings: Settings | None = None
) -> tuple[Tensor, Tensor]:
    """x [S, K], contiguous -> [S] int64 each: the best token of a row, or the one drawn by its
    settings, or -1 for a row that cannot be screened; and how many panels were computed for it."""
    rows = rounded_rows(x)
    highest, lowest = panel_bounds(rows, head)
    num_tokens, width = head.weight.shape
    tokens, nums_computed = (torch.empty(len(x), dtype=torch.int64) for _ in range(2))
    call(
        Call(
            of_dtype("find_tokens", x.dtype),
            rows=len(x),
            inputs={
                "x": x,
                "weight": head.weight.packed,
                "bounds": rows.bounds,
                "highest": highest,
                "lowest": lowest,
                "temperature": None if settings is None else settings.temperature,
                "top_k": None if settings is None else settings.top_k,
                "top_p": None if settings is None else settings.top_p,
                "least": None if settings is None else settings.least,
                "streams": None if settings is None else settings.streams,
                "num_outputs": num_tokens,
                "num_panels": highest.shape[1],
                "width": width,
                "stride": width,
                "most": head.max_panels,
                "longest": head.longest,
            },
            outputs={"tokens": tokens, "nums_computed": nums_computed},
            alone_rows=1,
        )
    )
    return tokens, nums_computed


def rounded_rows(x: Tensor) -> RoundedRows:
    num_rows, width = x.shape
    row_bytes = quantized_linear.row_bytes(width)
    rows = RoundedRows(
        coarse=torch.empty(num_rows, row_bytes, dtype=torch.uint8),
        fine=torch.empty(num_rows, row_bytes, dtype=torch.uint8),
        bounds=torch.empty(num_rows, 2),
    )
    call(
        Call(
            of_dtype("screen_rows", x.dtype),
            rows=num_rows,
            inputs={
                "x": x,
                "width": width,
                "padded_width": quantized_linear.padded(width),
                "row_bytes": row_bytes,
                "stride": width,
                "slack": slack_of(width),
            },
            outputs={"coarse": rows.coarse, "fine": rows.fine, "bounds": rows.bounds},
            alone_rows=small_rows(width * x.itemsize),
        )
    )
    return rows


def panel_bounds(rows: RoundedRows, head: BoundedHead) -> tuple[Tensor, Tensor]:
    """[S, P] each, for the logits of a row and the 32 tokens of a panel: none is above the first,
    and at least one is not below the second."""
    num_rows, num_panels = len(rows.coarse), len(head.rounded)
    highest, lowest = torch.empty(num_rows, num_panels), torch.empty(num_rows, num_panels)
    num_tokens, width = head.weight.shape
    call(
        Call(
            "panel_bounds",
            rows=num_rows,
            inputs={
                "coarse": rows.coarse,
                "fine": rows.fine,
                "weights": head.rounded,
                "scales": head.scales,
                "errors": head.errors,
                "lengths": head.lengths,
                "bounds": rows.bounds,
                "num_outputs": num_tokens,
                "padded_width": quantized_linear.padded(width),
                "row_bytes": rows.coarse.shape[1],
            },
            outputs={"highest": highest, "lowest": lowest},
        )
    )
    return highest, lowest
