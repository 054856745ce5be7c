"""Experts in groups against experts one token at a time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from baton.kernels.moe import group_by_expert, grouped_linear, moe, reference


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape)))


@pytest.mark.parametrize("activation", ["silu", "gelu_pytorch_tanh"])
def test_groups_give_what_single_tokens_give(activation: str) -> None:
    x, gate_up, down = random(7, 20), random(5, 24, 20), random(5, 20, 12)
    experts = torch.stack([torch.randperm(5)[:2] for _ in range(7)])
    shares = torch.rand(7, 2)

    found = moe(x, gate_up, down, experts, shares, activation)

    wanted = reference(x, gate_up, down, experts, shares, activation)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_groups_are_in_the_order_of_experts_and_then_of_tokens() -> None:
    experts = torch.tensor([[3, 0], [1, 3], [0, 3]])

    groups = group_by_expert(experts, 5)

    assert groups.pairs.tolist() == [1, 4, 2, 0, 3, 5]
    assert groups.stops.tolist() == [2, 3, 3, 6, 6]


def test_a_token_gives_the_same_beside_any_others() -> None:
    x, gate_up, down = random(6, 16), random(3, 16, 16), random(3, 16, 8)
    experts, shares = torch.tensor([[0, 2]] * 6), torch.rand(6, 2)

    together = moe(x, gate_up, down, experts, shares)
    alone = moe(x[2:3], gate_up, down, experts[2:3], shares[2:3])

    torch.testing.assert_close(together[2:3], alone)


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        grouped_linear(random(3, 8), random(2, 4, 9), torch.tensor([1, 3], dtype=torch.int32))
    with pytest.raises(ValueError, match="2 experts"):
        grouped_linear(random(3, 8), random(2, 4, 8), torch.tensor([1, 2, 3], dtype=torch.int32))
