"""RMS norm against its definition."""

from __future__ import annotations

import pytest
import torch

from baton.kernels.residual.rms_norm import add_rms_norm, reference, rms_norm

TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 1e-2, torch.float16: 1e-3}


def rows(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("shape", [(1, 64), (5, 100), (3, 1)])
def test_the_fused_norm_gives_the_normalised_sum_and_the_sum(
    shape: tuple[int, int], dtype: torch.dtype
) -> None:
    x, residual, weight = rows(*shape, dtype=dtype), rows(*shape, dtype=dtype), rows(shape[1])

    y, s = add_rms_norm(x, residual, weight.to(dtype), 1e-5)

    expected_y, expected_s = reference(x, residual, weight.to(dtype), 1e-5)
    assert y.dtype is s.dtype is dtype
    torch.testing.assert_close(y, expected_y, rtol=0, atol=4 * TOLERANCE[dtype])
    torch.testing.assert_close(s, expected_s, rtol=0, atol=4 * TOLERANCE[dtype])


def test_the_definition_is_that_of_the_paper() -> None:
    y, s = reference(torch.tensor([[3.0, 4.0]]), torch.zeros(1, 2), torch.tensor([1.0, 2.0]), 0.0)

    root_mean_square = (12.5) ** 0.5
    torch.testing.assert_close(y, torch.tensor([[3.0, 8.0]]) / root_mean_square)
    assert s.tolist() == [[3.0, 4.0]]


@pytest.mark.parametrize("dtype", list(TOLERANCE))
def test_the_plain_norm_is_the_fused_one_without_a_residual(dtype: torch.dtype) -> None:
    x, weight = rows(4, 3, 32, dtype=dtype), rows(32).to(dtype)

    expected, _ = reference(x, torch.zeros_like(x), weight, 1e-6)

    torch.testing.assert_close(
        rms_norm(x, weight, 1e-6), expected, rtol=0, atol=4 * TOLERANCE[dtype]
    )


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="shapes do not fit"):
        add_rms_norm(rows(2, 8), rows(2, 7), rows(8), 1e-6)
    with pytest.raises(ValueError, match="shapes do not fit"):
        rms_norm(rows(2, 8), rows(7), 1e-6)
