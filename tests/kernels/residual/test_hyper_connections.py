"""A residual of several streams: compiled against its definition, and what that promises."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from baton.kernels.cpu.operators import runs
from baton.kernels.residual import hyper_connections as kernel
from baton.kernels.residual.mixture import Mixture

WIDTH, ROUNDS, EPS = 37, 20, 1e-6

compiled = pytest.mark.skipif(not runs(torch.zeros(1)), reason="there is no C++ compiler")
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
each_number = pytest.mark.parametrize("num_streams", [1, 2, 4])


def mixture_of(num_streams: int, *, is_head: bool = False) -> Mixture:
    num_mixed = num_streams if is_head else 2 * num_streams + num_streams**2
    return Mixture(
        scale=torch.randn(1 if is_head else 3),
        base=torch.randn(num_mixed),
        num_rounds=ROUNDS,
        eps=EPS,
    )


def random_streams(num_tokens: int, num_streams: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Streams, and what was mixed of them."""
    streams = torch.randn(num_tokens, num_streams, WIDTH).to(dtype)
    return streams, 2 * torch.randn(num_tokens, 2 * num_streams + num_streams**2)


def near(found: Tensor, wanted: Tensor) -> None:
    bound = 1e-5 if wanted.dtype is torch.float32 else 2e-2
    torch.testing.assert_close(found, wanted, rtol=bound, atol=bound)


@compiled
@each_dtype
@each_number
def test_operators_compute_what_the_definition_says(num_streams: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    streams, mixed = random_streams(7, num_streams, dtype)
    mixture, y = mixture_of(num_streams), torch.randn(7, WIDTH).to(dtype)

    x, post, comb = kernel.connect_streams(streams, mixed, mixture)

    for found, wanted in zip(
        (x, post, comb), kernel.reference(streams, mixed, mixture), strict=True
    ):
        near(found, wanted)
    joined = torch.einsum("tij,tid->tjd", comb, streams.float())
    joined = joined + post.unsqueeze(-1) * y.float().unsqueeze(1)
    near(kernel.expand_streams(streams, y, post, comb), joined.to(dtype))
    flat = streams.flatten(1).float()
    normed = flat * (flat.square().mean(-1, keepdim=True) + EPS).rsqrt()
    near(kernel.norm_streams(streams, EPS), normed)


@compiled
@each_number
def test_streams_are_collapsed_by_their_gates(num_streams: int) -> None:
    torch.manual_seed(1)
    streams, _ = random_streams(5, num_streams, torch.float32)
    mixed, mixture = torch.randn(5, num_streams), mixture_of(num_streams, is_head=True)

    x = kernel.collapse_streams(streams, mixed, mixture)

    gates = (mixed * mixture.scale + mixture.base).sigmoid() + EPS
    near(x, (gates.unsqueeze(-1) * streams).sum(1))


def test_rows_and_columns_add_up_to_one() -> None:
    torch.manual_seed(2)
    streams, mixed = random_streams(9, 4, torch.float32)

    _, _, comb = kernel.connect_streams(streams, 0.2 * mixed, mixture_of(4))

    for dim in (1, 2):
        torch.testing.assert_close(comb.sum(dim), torch.ones(9, 4), rtol=0, atol=1e-3)


@compiled
@each_dtype
def test_a_token_gets_the_same_bits_alone(dtype: torch.dtype) -> None:
    torch.manual_seed(3)
    streams, mixed = random_streams(6, 4, dtype)
    mixture = mixture_of(4)
    every = kernel.connect_streams(streams, mixed, mixture)

    for row in range(6):
        own = slice(row, row + 1)
        alone = kernel.connect_streams(streams[own], mixed[own], mixture)
        assert all(torch.equal(a, b[own]) for a, b in zip(alone, every, strict=True))


def test_streams_begin_alike() -> None:
    x = torch.randn(3, WIDTH)

    assert torch.equal(kernel.spread_streams(x, 4), torch.stack([x] * 4, dim=1))


def test_what_does_not_fit_is_refused() -> None:
    streams, mixed = random_streams(3, 4, torch.float32)

    with pytest.raises(ValueError, match="shapes do not fit"):
        kernel.connect_streams(streams, mixed[:, 1:], mixture_of(4))
