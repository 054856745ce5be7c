"""Queries that grow with their position."""

from __future__ import annotations

import math

import pytest
import torch

from baton.kernels.positions.query_temperature import Temperature, query_temperature, reference

GROWTH = Temperature(growth=0.1, step=8)


def test_a_query_grows_by_steps() -> None:
    positions = torch.tensor([0, 6, 7, 14, 15, 800])

    grown = query_temperature(torch.ones(6, 1, 1), positions, GROWTH)

    factors = [1 + 0.1 * math.log1p(steps) for steps in (0, 0, 1, 1, 2, 100)]
    assert grown.flatten().tolist() == pytest.approx(factors)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1, 1, 5), (9, 3, 20), (40, 2, 64)])
def test_every_dtype_grows_as_defined(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape).to(dtype)
    positions = torch.arange(len(x)) * 1000

    found = query_temperature(x, positions, GROWTH)

    assert found.dtype is dtype
    bound = {torch.float32: 1e-6, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}[dtype]
    torch.testing.assert_close(found, reference(x, positions, GROWTH), rtol=bound, atol=0)


def test_positions_of_others_are_refused() -> None:
    with pytest.raises(ValueError, match="position each"):
        query_temperature(torch.ones(3, 1, 4), torch.arange(2), GROWTH)
