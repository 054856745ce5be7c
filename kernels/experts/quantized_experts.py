"""The quantized matrices of all experts of a layer on a GPU: W [E, N, K].

Each has the format of kernels/products/quantized_weight.py, and they are contiguous, so that one
kernel multiplies the pairs of all experts (kernels/experts/grouped_quantized_gpu.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

if TYPE_CHECKING:
    from baton.kernels.experts.grouped_linear_gpu import Rows  # Triton, which CPUs do without

from baton.kernels.products.quantized_weight import FP8, QuantizedWeight, round_to_fp8


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedExperts:
    items: Tensor
    """[E, N, K], or [E, N, K / 2] for 4-bit items"""
    scales: Tensor
    """[E, N / group[0], K / group[1]]"""
    zeros: Tensor | None
    """[E, N, K / group[1]]"""
    group: tuple[int, int]
    dtype: torch.dtype
    """The dtype of the x that they multiply."""

    @property
    def shape(self) -> tuple[int, int, int]:
        return len(self.items), *self.one(0).shape

    @property
    def nbytes(self) -> int:
        zeros = 0 if self.zeros is None else self.zeros.nbytes
        return self.items.nbytes + self.scales.nbytes + zeros

    def put(self, expert: int, weight: QuantizedWeight) -> None:
        """Copy the weight of one expert. Raises ValueError if its format differs."""
        mine = self.one(expert)
        is_alike = (
            weight.items.dtype is mine.items.dtype
            and weight.scales.dtype is mine.scales.dtype
            and weight.group == self.group
            and weight.shape == mine.shape
            and weight.order is None
            and (weight.zeros is None or mine.zeros is not None)
        )
        if not is_alike:
            raise ValueError(f"expert {expert} is kept in another way than the first")
        mine.items.copy_(weight.items)
        mine.scales.copy_(weight.scales)
        if mine.zeros is not None:
            mine.zeros.fill_(8) if weight.zeros is None else mine.zeros.copy_(weight.zeros)

    def one(self, expert: int) -> QuantizedWeight:
        """One expert, as a view."""
        return QuantizedWeight(
            self.items[expert],
            self.scales[expert],
            self.group,
            self.dtype,
            zeros=None if self.zeros is None else self.zeros[expert],
        )

    def to_dense(self, expert: int) -> Tensor:
        return self.one(expert).to_dense()

    def grouped_linear(self, x: Tensor, stops: Tensor) -> Tensor:
        """x [P, K] sorted by expert -> [P, N], each row multiplied by its expert's matrix; see
        kernels/experts/moe.py."""
        if x.shape[1] != self.shape[2] or stops.shape != self.shape[:1]:
            raise ValueError(f"shapes do not fit: {x.shape=} {stops.shape=} {self.shape=}")
        if x.is_cuda:
            return self.multiply_pairs(x, stops)
        is_fp8 = self.items.dtype is FP8
        seen = round_to_fp8(x, self.group[1] or x.shape[1]) if is_fp8 else x
        y, start = x.new_empty(len(x), self.shape[1]), 0
        for expert, stop in enumerate(stops.tolist()):
            if stop > start:
                y[start:stop] = functional.linear(seen[start:stop], self.to_dense(expert))
            start = stop
        return y

    def multiply_pairs(
        self,
        x: Tensor,
        stops: Tensor,
        rows_of: Rows | None = None,
        bias: Tensor | None = None,
        *,
        is_batch_invariant: bool = False,
    ) -> Tensor:
        """The same on a GPU: rows of x are found by `rows_of`, or x is [P, K] by expert if it is
        None. `is_batch_invariant`: results are batch-invariant."""
        from baton.kernels.experts import grouped_quantized_gpu as grouped_quantized
        from baton.kernels.products import fp8_rows_gpu as fp8_rows

        if self.items.dtype is FP8:
            if rows_of is not None and rows_of.shares is not None:  # what is rounded is x times it
                x, rows_of = rows_of.load(x), None
            x = fp8_rows.round_rows(x, self.group[1] or x.shape[1])
        return grouped_quantized.grouped_quantized(
            x, self.items, self.scales, stops,
            group=self.group, zeros=self.zeros, rows_of=rows_of, bias=bias,
            is_batch_invariant=is_batch_invariant,
        )  # fmt: skip


def empty_like(num_experts: int, first: QuantizedWeight, device: str) -> QuantizedExperts:
    """Memory for experts with the format of the first, to be filled with `put`."""

    def room(part: Tensor) -> Tensor:
        return torch.empty((num_experts, *part.shape), dtype=part.dtype, device=device)

    has_zeros = first.items.dtype is torch.uint8 and first.scales.dtype is not torch.uint8
    zeros = torch.empty_like(first.scales, dtype=torch.uint8) if has_zeros else None
    return QuantizedExperts(
        items=room(first.items),
        scales=room(first.scales),
        zeros=None if zeros is None else room(zeros),
        group=first.group,
        dtype=first.dtype,
    )
