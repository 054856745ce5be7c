"""Quantized weights in the formats of checkpoints, as GPUs multiply them.

    int8     W = q * s[n]                  one scale per output
    int8     W = q * s[n, k / G]           or one per G items of an output
    int4     W = (q - z) * s[n, k / G]     z is 8 or the group's zero point; a group's first half is
                                           in the low bits of its G / 2 bytes, the other in the high
    fp4      W = q * 2^(s - 127)           e2m1, stored like int4; s one byte per 32 items (MXFP4)
    fp8      W = q * s                     e4m3; one scale, one per output, or one per 128 x 128

W [N, K]. Columns may be in another order than the inputs x, so that a group is contiguous (GPTQ's
`desc_act`).

Sums are float32. Activations keep their dtype, except for fp8 weights: there x is quantized to e4m3
in groups of K or of 128 items, whatever the number of rows, so that products of many rows, which
use tensor cores for e4m3 (kernels/products/scaled_linear_gpu.py), and of few rows give the same.
int4 weights are rounded to the dtype of x.

    |W - W'| <= s / 2            int8, with s = max |W| / 127;  int4, with s = max |W| / 7
    |W - W'| <= max(|W| / 2^4, s / 2^10)      fp8, with s = max |W| / 448
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from baton.kernels.products.int8_rows import TINY
from baton.kernels.products.linear import GATES
from baton.kernels.products.mxfp4 import powers_of, values_of

FP8 = torch.float8_e4m3fn
LARGEST_FP8 = 448.0
INT4_GROUPS = (32, 64, 128)
FP8_BLOCK = 128


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedWeight:
    """A `PreparedWeight`, see kernels/products/weight.py."""

    items: Tensor
    """[N, K] int8 or e4m3; or uint8 [N, K / 2] with two items per byte."""
    scales: Tensor
    """float32 [N / group[0], K / group[1]]; uint8 if items are fp4."""
    group: tuple[int, int]
    """Numbers of outputs and of inputs that share a scale; 0 inputs means all."""
    dtype: torch.dtype
    """The dtype of the x that it multiplies."""
    zeros: Tensor | None = None
    """Zero points, uint8 [N, K / group[1]] in [0, 15]; None if all are 8."""
    order: Tensor | None = None
    """int64 [K]: the input of x that each column belongs to; None if they are in the order of x."""
    is_batch_invariant: bool = False
    """Whether results on a GPU must be batch-invariant; no library is used then."""

    @property
    def shape(self) -> tuple[int, int]:
        num_columns, width = self.items.shape
        return num_columns, width * 2 if self.items.dtype is torch.uint8 else width

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self._parts() if part is not None)

    def to(self, device: str) -> QuantizedWeight:
        items, scales, zeros, order = (
            None if part is None else part.to(device) for part in self._parts()
        )
        assert items is not None
        assert scales is not None
        return replace(self, items=items, scales=scales, zeros=zeros, order=order)

    def _parts(self) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        return self.items, self.scales, self.zeros, self.order

    def linear(self, x: Tensor, bias: Tensor | None) -> Tensor:
        return self._multiply(x, bias, x.dtype)

    def gated_linear(self, x: Tensor, activation: str, bias: Tensor | None) -> Tensor:
        return GATES[activation](self.linear(x, bias))

    def logits(self, x: Tensor) -> Tensor:
        return self._multiply(x, None, torch.float32)

    def embedding(self, ids: Tensor, scale: float | None) -> Tensor:
        rows = self._widened(ids).to(self.dtype)
        return rows if scale is None else rows * scale

    def to_dense(self) -> Tensor:
        every = torch.arange(self.shape[0], device=self.items.device)
        return self._widened(every).to(self.dtype)

    def _multiply(self, x: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        if x.shape[-1] != self.shape[1]:
            raise ValueError(f"x is {x.shape[-1]} wide, the weight {self.shape[1]}")
        if not x.is_cuda:
            return functional.linear(self._seen(x), self.to_dense(), bias).to(dtype)
        from baton.kernels.products.linear_gpu import FEW_ROWS, linear_tiles

        items, scales, group = self.items, self.scales, self.group
        if self.order is not None:
            x = x[:, self.order]
        if items.dtype is FP8:
            from baton.kernels.products import fp8_rows_gpu as fp8_rows
            from baton.kernels.products import scaled_linear_gpu as scaled_linear

            is_many = len(x) > FEW_ROWS and not self.is_batch_invariant
            if is_many and scaled_linear.takes(x, items, group, dtype):
                y = scaled_linear.scaled_linear(x, items, scales, group)
                return y if bias is None else y + bias
            x = fp8_rows.round_rows(x, group[1] or x.shape[1])
        return linear_tiles(
            x, items, scales,
            group=group, zeros=self.zeros, bias=bias, dtype=dtype,
            is_batch_invariant=self.is_batch_invariant,
        )  # fmt: skip

    def _seen(self, x: Tensor) -> Tensor:
        return round_to_fp8(x, self.group[1] or x.shape[1]) if self.items.dtype is FP8 else x

    def _widened(self, rows: Tensor) -> Tensor:
        """Dequantized rows, float32 [rows, K], with inputs in the order of x."""
        wide = self._in_order(rows)
        if self.order is None:
            return wide
        return torch.empty_like(wide).index_copy_(1, self.order, wide)

    def _in_order(self, rows: Tensor) -> Tensor:
        items, scales, group = self.items[rows], self.scales[rows // self.group[0]], self.group[1]
        if items.dtype is torch.uint8:
            codes = whole_of(items, group)
            if scales.dtype is torch.uint8:
                return (values_of(codes) * powers_of(scales).unsqueeze(-1)).flatten(1)
            zeros = 8 if self.zeros is None else self.zeros[rows].float().unsqueeze(-1)
            return ((codes.float() - zeros) * scales.unsqueeze(-1)).flatten(1)
        wide = items.float()
        if not group:
            return wide * scales
        return wide * scales.repeat_interleave(group, dim=1)[:, : wide.shape[1]]


def to_int8(weight: Tensor) -> QuantizedWeight:
    wide = weight.float()
    scales = _scales(wide.abs().amax(-1, keepdim=True), 127)
    return QuantizedWeight((wide / scales).round().to(torch.int8), scales, (1, 0), weight.dtype)


def to_int4(weight: Tensor, group: int = 32) -> QuantizedWeight:
    """Raises ValueError if K is not a multiple of `group`."""
    num_columns, width = weight.shape
    if group not in INT4_GROUPS or width % group:
        raise ValueError(f"K = {width} is not cut into groups of {group}")
    wide = weight.float().view(num_columns, -1, group)
    scales = _scales(wide.abs().amax(-1, keepdim=True), 7)
    items = ((wide / scales).round() + 8).to(torch.uint8)
    return QuantizedWeight(in_halves(items), scales.squeeze(-1), (1, group), weight.dtype)


def to_fp8(weight: Tensor, *, has_blocks: bool = False) -> QuantizedWeight:
    """Quantizes to e4m3 with one scale, or one per block of 128 x 128. Raises ValueError if K is
    not a multiple of 128 then."""
    num_columns, width = weight.shape
    if has_blocks and width % FP8_BLOCK:
        raise ValueError(f"K = {width} is not cut into blocks of {FP8_BLOCK}")
    wide = weight.float()
    if not has_blocks:
        scales = _scales(wide.abs().amax().view(1, 1), LARGEST_FP8)
        items = (wide / scales).clamp(-LARGEST_FP8, LARGEST_FP8).to(FP8)
        return QuantizedWeight(items, scales, (num_columns, 0), weight.dtype)
    padded = functional.pad(wide, (0, -width % FP8_BLOCK, 0, -num_columns % FP8_BLOCK))
    blocks = padded.view(-(-num_columns // FP8_BLOCK), FP8_BLOCK, -1, FP8_BLOCK)
    scales = _scales(blocks.abs().amax((1, 3)), LARGEST_FP8)
    spread = scales.repeat_interleave(FP8_BLOCK, 0).repeat_interleave(FP8_BLOCK, 1)
    items = (wide / spread[:num_columns, :width]).clamp(-LARGEST_FP8, LARGEST_FP8).to(FP8)
    return QuantizedWeight(items, scales.contiguous(), (FP8_BLOCK, FP8_BLOCK), weight.dtype)


def round_to_fp8(x: Tensor, group: int) -> Tensor:
    """x [T, K] quantized to e4m3 in groups with one scale each, and dequantized to the dtype of
    x."""
    wide = x.float().view(len(x), x.shape[1] // group, group)
    scales = _scales(wide.abs().amax(-1, keepdim=True), LARGEST_FP8)
    items = (wide / scales).clamp(-LARGEST_FP8, LARGEST_FP8).to(FP8)
    return (items.float() * scales).view(x.shape).to(x.dtype)


def in_halves(items: Tensor) -> Tensor:
    """4-bit items, uint8 [N, groups, G] -> bytes [N, K / 2]"""
    low, high = items.chunk(2, dim=-1)
    return (low | high << 4).flatten(1)


def whole_of(pairs: Tensor, group: int) -> Tensor:
    """bytes [N, K / 2] -> 4-bit items, uint8 [N, groups, G]"""
    halves = pairs.view(len(pairs), -1, group // 2)
    return torch.cat((halves & 15, halves >> 4), dim=-1)


def _scales(largest: Tensor, limit: float) -> Tensor:
    """Scales largest / limit. A scale near 0 is replaced by 1, as all items are 0 then and division
    must be possible; NaN stays NaN."""
    return torch.where(largest <= TINY, torch.ones_like(largest), largest / limit)
