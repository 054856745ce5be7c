"""The gate that is cut off: compiled against its definition."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from baton.kernels.cpu.operators import runs
from baton.kernels.elementwise import clamped_swiglu as kernel

compiled = pytest.mark.skipif(not runs(torch.zeros(1)), reason="there is no C++ compiler")


@compiled
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [1, 16, 37])
def test_operators_gate_as_the_definition_does(width: int, dtype: torch.dtype) -> None:
    gate_up = 4 * torch.randn(5, 2 * width, generator=torch.Generator().manual_seed(0)).to(dtype)

    found = kernel.clamped_swiglu(gate_up, 1.7, 3.0, 1.0)

    wanted = kernel.reference(gate_up.float(), 1.7, 3.0, 1.0).to(dtype)
    bound = 1e-5 if dtype is torch.float32 else 1e-2
    torch.testing.assert_close(found, wanted, rtol=bound, atol=bound)


def test_without_an_offset_it_is_swiglu_cut_off() -> None:
    gate_up = torch.tensor([[5.0, -7.0, 0.5, 9.0, -9.0, 0.25]])

    found = kernel.clamped_swiglu(gate_up, 1.0, 2.0, 0.0)

    gate, up = torch.tensor([[2.0, -7.0, 0.5]]), torch.tensor([[2.0, -2.0, 0.25]])
    torch.testing.assert_close(found, functional.silu(gate) * up)
