"""Updates, rows and adapters of tests, and how near results must come to the definition."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from baton.kernels.products.low_rank import LowRank, reference

Shape = tuple[int, tuple[int, ...], int]
"""Inputs, outputs of each part, and rank."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows that are updated, of which about every fourth has no adapter."""

    y: Tensor
    x: Tensor
    updates: LowRank
    numbers: Tensor

    def to(self, dtype: torch.dtype) -> Rows:
        updates = self.updates
        wide = LowRank(updates.down.to(dtype), updates.up.to(dtype), updates.parts)
        return Rows(self.y.to(dtype), self.x.to(dtype), wide, self.numbers)


def rows_of(
    num_rows: int,
    shape: Shape,
    dtype: torch.dtype,
    *,
    num_adapters: int = 3,
    device: str = "cpu",
) -> Rows:
    """Rows of x lie apart, and numbers go on behind them."""
    width, parts, rank = shape
    generator = torch.Generator().manual_seed(num_rows * 1000 + width + rank)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype).to(device)

    updates = LowRank(
        random(num_adapters, len(parts), rank, width),
        random(num_adapters, rank, sum(parts)),
        parts,
    )
    numbers = torch.randint(0, num_adapters + 1, (num_rows + 5,), generator=generator).to(device)
    x = random(num_rows, width + 3)[:, :width]
    return Rows(random(num_rows, sum(parts)), x, updates, numbers)


def assert_updated(found: Tensor, rows: Rows, *, is_interpreted: bool = False) -> None:
    """As near to the definition in double precision as products in float32 are, and one rounding to
    the dtype of y; rows without an adapter are as they were.

    Triton's interpreter cuts off where a device rounds, also the two parts of inner values.
    """
    exact, positive = rows.to(torch.float64), rows.to(torch.float64)
    wanted = reference(exact.y, exact.x, exact.updates, exact.numbers)
    for tensor in (positive.y, positive.x, positive.updates.down, positive.updates.up):
        tensor.abs_()
    terms = reference(positive.y, positive.x, positive.updates, positive.numbers)
    rounding, of_terms = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8}[found.dtype], 2.0**-18
    if is_interpreted:
        rounding, of_terms = 2 * rounding, 2.0**-14
    limit = terms * of_terms + wanted.abs() * rounding
    assert bool(((found.double() - wanted).abs() <= limit).all())
    is_bare = rows.numbers[: len(found)] == 0
    assert torch.equal(found[is_bare], rows.y[is_bare])
