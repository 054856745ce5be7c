"""Integer weights of 8 or 4 bits, packed for a CPU; they are multiplied by activations of 8 bits.

    W = scale * w       w an integer of 8 or 4 bits, one scale per row or per 32 items of a row
    y[t, n] = scale[t] sum over g of scale[n, g] (q[t, g] . w[n, g]) + b[n]

q . w is exact, in int32; q is the quantized activation (kernels/products/int8_rows.py). Rows are
stored in panels of 32, as in kernels/products/packed_weight.py: rows 32 p to 32 p + 31 of W, or 16
of the gate matrix and the same 16 of the up matrix. N is padded with zeros to whole panels, K to
whole groups of 32.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from baton.kernels.cpu import operators
from baton.kernels.products import int8_rows
from baton.kernels.products import quantized_linear_cpu as quantized_linear
from baton.kernels.products.linear import GATES

PANEL = 32
GROUP = 32
ROWS_AT_ONCE = 1 << 12
"""Rows of W that torch dequantizes and multiplies at a time, to limit memory."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PackedQuantizedWeight(ABC):
    """A `PreparedWeight`, see kernels/products/weight.py. Subclasses differ in the layout of a
    panel."""

    bits: ClassVar[int]

    shape: tuple[int, int]
    dtype: torch.dtype
    is_gated: bool
    packed: Tensor
    """The bytes of all panels."""
    scales: Tensor | None
    """float32 [panels, 32]; None if the scales are among the bytes."""

    @property
    def nbytes(self) -> int:
        return self.packed.nbytes + (0 if self.scales is None else self.scales.nbytes)

    def linear(self, x: Tensor, bias: Tensor | None) -> Tensor:
        self._check(is_gated=False)
        if operators.runs(x):
            return quantized_linear.linear(x, self, bias)
        return self.reference(x, bias).to(x.dtype)

    def gated_linear(self, x: Tensor, activation: str, bias: Tensor | None) -> Tensor:
        self._check(is_gated=True)
        if operators.runs(x):
            return quantized_linear.gated_linear(x, self, activation, bias)
        return GATES[activation](self.reference(x, bias)).to(x.dtype)

    def logits(self, x: Tensor) -> Tensor:
        self._check(is_gated=False)
        if operators.runs(x):
            return quantized_linear.logits(x, self)
        return self.reference(x, None)

    def embedding(self, ids: Tensor, scale: float | None) -> Tensor:
        self._check(is_gated=False)
        if operators.runs(torch.empty(0, dtype=self.dtype, device=ids.device)):
            return quantized_linear.embedding(ids, self, scale)
        x = self.rows(ids).to(self.dtype)
        return x if scale is None else x * torch.tensor(scale, dtype=x.dtype)

    def reference(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """x W^T + b in float32: the definition, up to rounding of sums, and the fallback without
        operators."""
        q, scales = int8_rows.reference(x)
        every = torch.arange(self.shape[0])
        starts = range(0, len(every), ROWS_AT_ONCE)
        pieces = (self.rows(every[start : start + ROWS_AT_ONCE]).double() for start in starts)
        y = torch.cat([q.double() @ piece.T for piece in pieces], dim=1) * scales
        return (y if bias is None else y + bias).float()

    def rows(self, ids: Tensor) -> Tensor:
        """The dequantized rows W[ids], float32."""
        at = places(self.shape[0], self.is_gated)[ids]
        return self._dequantized(at // PANEL, at % PANEL)[:, : self.shape[1]]

    def to_dense(self) -> Tensor:
        return self.rows(torch.arange(self.shape[0])).to(self.dtype)

    @abstractmethod
    def _dequantized(self, panels: Tensor, columns: Tensor) -> Tensor:
        """Dequantized rows, given their panels and their columns in these: float32 [rows, K
        padded]."""

    def _check(self, *, is_gated: bool) -> None:
        if self.is_gated is not is_gated:
            raise ValueError("packed with the gates among the rows, or not: the other is wanted")


def places(num_rows: int, is_gated: bool) -> Tensor:
    """[N]: the column of each row of W, counted over all panels."""
    rows = torch.arange(num_rows)
    if not is_gated:
        return rows
    half = PANEL // 2
    row, is_up = rows % (num_rows // 2), rows // (num_rows // 2)
    return row // half * PANEL + is_up * half + row % half


def num_panels(num_rows: int, is_gated: bool) -> int:
    return -(-num_rows // 2 // (PANEL // 2)) if is_gated else -(-num_rows // PANEL)


def in_panels(
    weight: Tensor, is_gated: bool, dtype: torch.dtype = torch.float32, padding: int = 0
) -> Tensor:
    """W [N, K] -> [panels, 32, K padded]"""
    count = num_panels(len(weight), is_gated)
    width = quantized_linear.padded(weight.shape[1])
    panels = torch.full((count * PANEL, width), padding, dtype=dtype)
    panels[places(len(weight), is_gated), : weight.shape[1]] = weight.to(dtype)
    return panels.view(count, PANEL, width)
