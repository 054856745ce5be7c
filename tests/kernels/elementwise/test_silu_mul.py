"""The gate of SwiGLU against its definition."""

from __future__ import annotations

import math

import pytest
import torch

from baton.kernels.elementwise.silu_mul import reference, silu_mul


@pytest.mark.parametrize(
    ("dtype", "atol"), [(torch.float32, 1e-6), (torch.bfloat16, 5e-2), (torch.float16, 5e-3)]
)
@pytest.mark.parametrize("shape", [(1, 2), (5, 202)])
def test_the_gate_is_as_defined(shape: tuple[int, int], dtype: torch.dtype, atol: float) -> None:
    gate_up = torch.randn(shape).to(dtype)

    torch.testing.assert_close(silu_mul(gate_up), reference(gate_up), rtol=0, atol=atol)


def test_the_first_half_is_the_gate() -> None:
    (value,) = reference(torch.tensor([[1.0, 5.0]]))[0].tolist()

    assert value == pytest.approx(5 / (1 + math.exp(-1)))


def test_the_input_is_left_as_it_is() -> None:
    gate_up = torch.randn(3, 8)
    before = gate_up.clone()

    silu_mul(gate_up)

    assert torch.equal(gate_up, before)
