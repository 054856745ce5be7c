"""Layer norm against its definition."""

from __future__ import annotations

import pytest
import torch

from baton.kernels.residual.layer_norm import add_layer_norm, layer_norm, reference

HALF = [(torch.float32, 1e-5), (torch.bfloat16, 4e-2), (torch.float16, 5e-3)]


@pytest.mark.parametrize(("dtype", "atol"), HALF)
@pytest.mark.parametrize("shape", [(1, 8), (5, 101)])
def test_the_sum_is_normalised_and_handed_on(
    shape: tuple[int, int], dtype: torch.dtype, atol: float
) -> None:
    x, residual = (3 * torch.randn(2, *shape) + 1).to(dtype)
    weight, bias = torch.randn(2, shape[1]).to(dtype)

    y, s = add_layer_norm(x, residual, weight, bias, 1e-5)

    expected_y, expected_s = reference(x, residual, weight, bias, 1e-5)
    assert y.dtype is s.dtype is dtype
    torch.testing.assert_close(y, expected_y, rtol=0, atol=atol)
    assert torch.equal(s, expected_s)
    assert torch.equal(y, layer_norm(s, weight, bias, 1e-5))


def test_mean_and_variance_are_those_of_weight_and_bias() -> None:
    y = layer_norm(torch.randn(4, 64) * 7 + 3, torch.full((64,), 2.0), torch.full((64,), 5.0), 1e-6)

    torch.testing.assert_close(y.mean(1), torch.full((4,), 5.0), rtol=0, atol=1e-4)
    torch.testing.assert_close(y.var(1, unbiased=False), torch.full((4,), 4.0), rtol=0, atol=1e-3)


def test_shapes_that_do_not_fit_are_refused() -> None:
    x, weight = torch.zeros(2, 4), torch.zeros(4)
    with pytest.raises(ValueError, match="shapes do not fit"):
        layer_norm(x, weight, torch.zeros(3), 1e-5)
    with pytest.raises(ValueError, match="shapes do not fit"):
        add_layer_norm(x, torch.zeros(1, 4), weight, weight, 1e-5)
