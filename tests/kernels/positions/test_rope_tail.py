"""Rotary positions of the ends of heads: compiled against their definition, and undone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from baton.kernels.cpu.operators import runs
from baton.kernels.positions import rope_tail as kernel

compiled = pytest.mark.skipif(not runs(torch.zeros(1)), reason="there is no C++ compiler")


def angles(num_tokens: int, pairs: int) -> tuple[Tensor, Tensor]:
    rotated = 7 * torch.rand(num_tokens, pairs)
    return rotated.cos(), rotated.sin()


@compiled
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("unit_eps", [None, 1e-6])
@pytest.mark.parametrize("is_back", [False, True])
@pytest.mark.parametrize("width", [8, 21, 64])
def test_operators_turn_as_the_definition_does(
    width: int, is_back: bool, unit_eps: float | None, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    x, rotation = 3 * torch.randn(5, 3, width).to(dtype), angles(5, 4)

    found = kernel.rope_tail(x, *rotation, is_back=is_back, unit_eps=unit_eps)

    wanted = kernel.reference(x, *rotation, is_back=is_back, unit_eps=unit_eps)
    bound = 1e-5 if dtype is torch.float32 else 2e-2
    torch.testing.assert_close(found, wanted, rtol=bound, atol=bound)


def test_what_is_rotated_back_is_as_it_was() -> None:
    torch.manual_seed(1)
    x, rotation = torch.randn(5, 3, 16), angles(5, 4)

    rotated = kernel.rope_tail(x, *rotation)

    assert torch.equal(rotated[..., :8], x[..., :8])
    assert not torch.allclose(rotated[..., 8:], x[..., 8:])
    torch.testing.assert_close(kernel.rope_tail(rotated, *rotation, is_back=True), x)


def test_angles_that_are_wider_than_heads_are_refused() -> None:
    with pytest.raises(ValueError, match="shapes do not fit"):
        kernel.rope_tail(torch.randn(2, 1, 6), *angles(2, 4))
