"""Gumbel noise for drawing tokens; each value is a function of seed, position, choice and token.

The token with the largest  score + noise  is a draw from softmax(scores) (Gumbel 1954). The noise
of a token is  -log(-log(u)),  with u = (word + 1/2) / 2^32 and `word` one of the four words

    Philox4x32-10(counter = (token // 4, position, choice, 0), key = seed)[token % 4]

so the same request draws the same token on any replica and in any batch.

S rows, V vocabulary.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from baton.kernels.sampling import philox

SPREAD = -math.log(-math.log1p(-(2.0**-33))) + math.log(33 * math.log(2))
"""Largest noise minus smallest, about 26: tokens further below the best cannot be drawn."""


def gumbel(streams: Tensor, tokens: Tensor) -> Tensor:
    """The noise of chosen tokens [S, n], float64.

    `streams` is int64 [S, 4]: the low and high word of the seed, the position, the choice.
    """
    words = _words(streams, tokens // 4)  # [S, n, 4]
    return _noise(words.gather(-1, (tokens % 4).unsqueeze(-1)).squeeze(-1))


def gumbel_all(streams: Tensor, vocab_size: int) -> Tensor:
    """The noise of all tokens [S, V], float64, at a quarter of the cost per token."""
    quads = torch.arange(-(-vocab_size // 4), device=streams.device).unsqueeze(0)
    return _noise(_words(streams, quads).flatten(1)[:, :vocab_size])


def _words(streams: Tensor, quads: Tensor) -> Tensor:
    """[S or 1, n] -> [S, n, 4]"""
    seed_low, seed_high, position, choice = streams.unsqueeze(-1).unbind(1)  # [S, 1] each
    counter = (quads, position, choice, torch.zeros_like(choice))
    return torch.stack(philox.philox(counter, (seed_low, seed_high)), dim=-1)


def _noise(words: Tensor) -> Tensor:
    uniform = (words.double() + 0.5) * 2.0**-32
    return uniform.log_().neg_().log_().neg_()


def reference(seed: int, choice: int, position: int, token: int) -> float:
    """The definition, for one token."""
    counter, key = (token // 4, position, choice, 0), (seed & philox.WORD, seed >> 32)
    word = philox.reference(counter, key)[token % 4]
    return -math.log(-math.log((word + 0.5) / 2**32))
