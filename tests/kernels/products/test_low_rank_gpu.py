"""Low-rank updates by Triton, on a GPU or interpreted, against their definition."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.gpu.pretended_gpu import tensors_on_a_gpu
from tests.kernels.products.low_rank_cases import Rows, Shape, assert_updated, rows_of
from torch import Tensor

from baton.kernels.products import low_rank_gpu as module
from baton.kernels.products.low_rank import LowRank, add_low_rank_

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def update(rows: Rows, some: slice = slice(None)) -> Tensor:
    y, numbers = rows.y[some].clone(), rows.numbers[some].contiguous()
    with tensors_on_a_gpu():
        return add_low_rank_(y, rows.x[some], rows.updates, numbers)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("few_rows", [0, 128])
@pytest.mark.parametrize(
    ("num_rows", "shape"),
    [
        (1, (1100, (100, 36, 200), 7)),
        (40, (77, (130,), 20)),
        (3, (20, (5, 6), 256)),
        (0, (8, (8,), 8)),
    ],
)
def test_each_row_gets_the_update_of_its_adapter(
    num_rows: int,
    shape: Shape,
    few_rows: int,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "FEW_ROWS", few_rows)
    rows = rows_of(num_rows, shape, dtype, device=DEVICE)

    assert_updated(update(rows), rows, is_interpreted=DEVICE == "cpu")


def test_values_between_the_products_are_not_rounded() -> None:
    down = torch.tensor([1, 2**-9], device=DEVICE).bfloat16().view(1, 1, 1, 2)
    rows = Rows(
        torch.tensor([[-256.0]], device=DEVICE).bfloat16(),
        torch.ones(1, 2, device=DEVICE).bfloat16(),
        LowRank(down, torch.full((1, 1, 1), 256.0, device=DEVICE).bfloat16(), (1,)),
        torch.ones(1, dtype=torch.int64, device=DEVICE),
    )

    assert update(rows).item() == 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_has_the_same_bits_beside_any_other_rows(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FEW_ROWS", 16)
    rows = rows_of(35, (600, (140,), 16), dtype, device=DEVICE)

    together = update(rows)

    for some in (slice(0, 1), slice(7, 20), slice(30, 35)):
        assert torch.equal(update(rows, some), together[some])
