"""Grouped products on a GPU against one product a group."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from baton.kernels.experts.grouped_linear_gpu import grouped_linear, grouped_tiles

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def by_group(x: Tensor, weights: Tensor, stops: list[int]) -> Tensor:
    starts = [0, *stops[:-1]]
    parts = [
        x[start:stop].float() @ weight.float().T
        for start, stop, weight in zip(starts, stops, weights, strict=True)
    ]
    return torch.cat(parts).to(x.dtype)


@pytest.mark.parametrize(
    "stops", [[5, 5, 6, 40, 40], [0, 0, 0, 0, 1], [16, 32, 33, 34, 50], [200, 201, 202, 203, 210]]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_row_is_multiplied_by_its_groups_matrix(stops: list[int], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(stops[-1], 72, device=DEVICE).to(dtype)
    weights = torch.randn(5, 100, 72, device=DEVICE).to(dtype)
    ends = torch.tensor(stops, dtype=torch.int32, device=DEVICE)

    found = grouped_tiles(x, weights, ends)

    rtol = 1e-4 if dtype is torch.float32 else 1e-2
    torch.testing.assert_close(found, by_group(x, weights, stops), rtol=rtol, atol=rtol)


@pytest.mark.gpu
@pytest.mark.parametrize("num_rows", [9, 4096])
def test_the_faster_way_gives_the_same(num_rows: int) -> None:
    x = torch.randn(num_rows, 256, device="cuda", dtype=torch.bfloat16)
    weights = torch.randn(8, 128, 256, device="cuda", dtype=torch.bfloat16)
    ends = torch.linspace(1, num_rows, 8, device="cuda").to(torch.int32)

    found = grouped_linear(x, weights, ends)

    torch.testing.assert_close(found, grouped_tiles(x, weights, ends), rtol=2e-2, atol=1e-1)
