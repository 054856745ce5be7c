"""Rotary positions against their definition."""

from __future__ import annotations

import pytest
import torch

from baton.kernels.positions.rope import reference, rope


def angles(num_tokens: int, half: int) -> torch.Tensor:
    return torch.outer(torch.arange(num_tokens).float(), 1.0 / 100 ** torch.linspace(0, 1, half))


@pytest.mark.parametrize(
    ("dtype", "atol"), [(torch.float32, 1e-6), (torch.bfloat16, 3e-2), (torch.float16, 3e-3)]
)
def test_queries_and_keys_turn_as_defined(dtype: torch.dtype, atol: float) -> None:
    q, k = torch.randn(7, 6, 10).to(dtype), torch.randn(7, 2, 10).to(dtype)
    angle = angles(7, 5)

    rotated_q, rotated_k = rope(q, k, angle.cos(), angle.sin())

    assert rotated_q.dtype is rotated_k.dtype is dtype
    for rotated, x in ((rotated_q, q), (rotated_k, k)):
        expected = reference(x, angle.cos(), angle.sin())
        torch.testing.assert_close(rotated, expected, rtol=0, atol=atol)


def test_of_a_wider_head_only_the_first_dimensions_turn() -> None:
    q, k = torch.randn(7, 6, 11), torch.randn(7, 2, 11)
    angle = angles(7, 3)

    rotated_q, rotated_k = rope(q, k, angle.cos(), angle.sin())

    for rotated, x in ((rotated_q, q), (rotated_k, k)):
        assert torch.equal(rotated[..., 6:], x[..., 6:])
        expected = reference(x[..., :6], angle.cos(), angle.sin())
        torch.testing.assert_close(rotated[..., :6], expected, rtol=0, atol=1e-6)
        torch.testing.assert_close(rotated, reference(x, angle.cos(), angle.sin()))


def test_pairs_lie_half_a_head_apart() -> None:
    quarter = torch.full((1, 2), torch.pi / 2)

    rotated = reference(torch.tensor([[[1.0, 2.0, 3.0, 4.0]]]), quarter.cos(), quarter.sin())

    torch.testing.assert_close(rotated, torch.tensor([[[-3.0, -4.0, 1.0, 2.0]]]))


def test_scores_depend_on_distance_alone() -> None:
    angle = angles(20, 4)
    q, k = torch.randn(1, 1, 8).expand(20, 1, 8), torch.randn(1, 1, 8).expand(20, 1, 8)

    rotated_q, rotated_k = rope(q, k, angle.cos(), angle.sin())

    scores = rotated_q[:, 0] @ rotated_k[:, 0].T
    torch.testing.assert_close(scores[9, 4], scores[17, 12], rtol=0, atol=1e-5)
    assert abs(scores[9, 4] - scores[9, 5]) > 1e-3


@pytest.mark.parametrize("width", [6, 8])
def test_shapes_that_do_not_fit_are_refused(width: int) -> None:
    angle = angles(3 if width == 6 else 2, 4)
    x = torch.zeros(3, 1, width)
    with pytest.raises(ValueError, match="shapes do not fit"):
        rope(x, x, angle, angle)
