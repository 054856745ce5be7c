"""GELU and the gate of GeGLU against their definitions."""

from __future__ import annotations

import math

import pytest
import torch

from baton.kernels.elementwise.gelu import gelu, gelu_tanh, gelu_tanh_mul, reference, reference_tanh

HALF = [(torch.float32, 1e-6), (torch.bfloat16, 5e-2), (torch.float16, 5e-3)]


@pytest.mark.parametrize(("dtype", "atol"), HALF)
@pytest.mark.parametrize("shape", [(1, 1), (5, 101)])
def test_both_forms_are_as_defined(shape: tuple[int, int], dtype: torch.dtype, atol: float) -> None:
    x = (2 * torch.randn(shape)).to(dtype)

    torch.testing.assert_close(gelu(x), reference(x), rtol=0, atol=atol)
    torch.testing.assert_close(gelu_tanh(x), reference_tanh(x), rtol=0, atol=atol)


@pytest.mark.parametrize(("dtype", "atol"), HALF)
@pytest.mark.parametrize("width", [1, 101])
def test_the_first_half_is_the_gate(width: int, dtype: torch.dtype, atol: float) -> None:
    gate_up = torch.randn(3, 2 * width).to(dtype)
    before = gate_up.clone()

    y = gelu_tanh_mul(gate_up)

    expected = reference_tanh(gate_up[:, :width]) * gate_up[:, width:]
    torch.testing.assert_close(y, expected, rtol=0, atol=atol)
    assert torch.equal(gate_up, before)


def test_a_value_is_weighted_by_its_place_in_the_normal_distribution() -> None:
    share = 0.5 * (1 + math.erf(1 / math.sqrt(2)))

    assert gelu(torch.tensor([1.0])).item() == pytest.approx(share, abs=1e-6)
    assert gelu_tanh(torch.tensor([1.0])).item() == pytest.approx(share, abs=1e-3)
