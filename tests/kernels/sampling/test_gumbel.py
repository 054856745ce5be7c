"""The noise of tokens: its names, its distribution, its range."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from baton.kernels.sampling.gumbel import SPREAD, gumbel, gumbel_all, reference
from baton.kernels.sampling.philox import WORD

EULER_GAMMA = 0.5772156649


def stream(seed: int, choice: int, position: int) -> torch.Tensor:
    return torch.tensor([[seed & WORD, seed >> 32, position, choice]])


@given(
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 200_000),
)
def test_the_noise_of_a_token_is_as_defined(
    seed: int, choice: int, position: int, token: int
) -> None:
    (noise,) = gumbel(stream(seed, choice, position), torch.tensor([[token]])).flatten().tolist()

    assert noise == pytest.approx(reference(seed, choice, position, token), rel=1e-12)


def test_all_tokens_at_once_have_the_noise_they_have_alone() -> None:
    streams = torch.cat([stream(5, 0, 9), stream(2**63 + 1, 2, 9)])
    tokens = torch.tensor([[0, 3, 101, 4], [7, 7, 50, 1]])

    everything = gumbel_all(streams, 102)

    assert everything.shape == (2, 102)
    assert torch.equal(everything.gather(1, tokens), gumbel(streams, tokens))


def test_every_part_of_the_name_changes_the_noise() -> None:
    streams = [
        stream(1, 0, 10),
        stream(1 + 2**32, 0, 10),
        stream(2, 0, 10),
        stream(1, 1, 10),
        stream(1, 0, 11),
        stream(1, 10, 0),
    ]

    noise = gumbel_all(torch.cat(streams), 64).flatten()

    assert len(set(noise.tolist())) == len(noise)


def test_the_noise_is_gumbel_distributed() -> None:
    noise = gumbel_all(stream(3, 0, 0), 200_000).flatten()

    assert noise.mean().item() == pytest.approx(EULER_GAMMA, abs=0.02)
    assert noise.var().item() == pytest.approx(math.pi**2 / 6, abs=0.04)
    for x in (-1.0, 0.0, 1.0, 4.0):
        share = (noise <= x).double().mean().item()
        assert share == pytest.approx(math.exp(-math.exp(-x)), abs=0.005)


def test_no_two_noises_differ_by_more_than_the_spread() -> None:
    def noise(word: int) -> float:
        return -math.log(-math.log((word + 0.5) / 2**32))

    assert noise(WORD) - noise(0) <= SPREAD * (1 + 1e-9)
    assert noise(WORD) - noise(0) == pytest.approx(SPREAD)
