"""Weights in a few bits, packed for a CPU: multiplied as whole numbers with activations in eight.

    W = scale * w       w whole, of 8 or 4 bits, a scale for each row or for each 32 of a row
    y[t, n] = scale[t] sum over g of scale[n, g] (q[t, g] . w[n, g]) + b[n]

q . w is exact, in int32; what q is stands in kernels/products/int8_rows.py. Rows lie in panels of
32 like those of kernels/products/packed_weight.py: 32 p to 32 p + 31 of W, or 16 of a gate and the
16 of what it lets through. N is padded to whole panels and K to whole groups of 32, by zeros.
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
"""Rows of W that torch multiplies at once: all of a head would take much memory for a while."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PackedQuantizedWeight(ABC):
    """A `PreparedWeight`, see kernels/products/weight.py; its kinds differ in how numbers lie."""

    bits: ClassVar[int]

    shape: tuple[int, int]
    dtype: torch.dtype
    is_gated: bool
    packed: Tensor
    """Bytes, by panel."""
    scales: Tensor | None
    """[panels, 32] float32, where they are not among the bytes."""

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
        """The definition, all but exact, and the last resort: x W^T + b in float32."""
        q, scales = int8_rows.reference(x)
        every = torch.arange(self.shape[0])
        starts = range(0, len(every), ROWS_AT_ONCE)
        pieces = (self.rows(every[start : start + ROWS_AT_ONCE]).double() for start in starts)
        y = torch.cat([q.double() @ piece.T for piece in pieces], dim=1) * scales
        return (y if bias is None else y + bias).float()

    def rows(self, ids: Tensor) -> Tensor:
        """W[ids] in float32: what the numbers that are kept stand for."""
        at = places(self.shape[0], self.is_gated)[ids]
        return self._dequantized(at // PANEL, at % PANEL)[:, : self.shape[1]]

    def to_dense(self) -> Tensor:
        return self.rows(torch.arange(self.shape[0])).to(self.dtype)

    @abstractmethod
    def _dequantized(self, panels: Tensor, columns: Tensor) -> Tensor:
        """Rows by their places: float32 [rows, K padded]."""

    def _check(self, *, is_gated: bool) -> None:
        if self.is_gated is not is_gated:
            raise ValueError("packed with the gates among the rows, or not: the other is wanted")


def places(num_rows: int, is_gated: bool) -> Tensor:
    """[N]: where each row of W is, counting all columns of all panels."""
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
