"""Speculative sampling (Leviathan et al. 2023, https://arxiv.org/abs/2211.17192): accepts draft
tokens such that outputs have the model's distribution.

    x, drawn from q, is kept with probability  min(1, p(x) / q(x))
    otherwise a token is drawn from            max(0, p - q), renormalised

A token that was looked up, and not drawn, has q = 1, and all other tokens q = 0. The rule is exact
for a token that was drawn only if the drafter offers every token that it draws from q: see
`leave_out`.

Acceptance, redrawing and drafting have random streams of their own. They must be independent of the
noise with which the model draws where nothing was drafted, because whether a token is drafted at
all may depend on the drafting noise.

T draft tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from baton.kernels.gpu.upload import uploaded
from baton.kernels.sampling.best_token import best_token
from baton.kernels.sampling.gumbel import gumbel, gumbel_all

DRAFTING, KEEPING, REDRAWING = 1 << 29, 1 << 30, 1 << 31
"""Bits in a stream's choice that keep three kinds of noise apart: drafting a token, keeping it, and
drawing another in its place."""


def are_kept(p: Tensor, q: Tensor | float, drafted: Tensor, streams: Tensor) -> Tensor:
    """Whether each drafted token is kept, [T] bool. `p` and `q`, [T] each, are its probabilities by
    the model and by the drafter; `q` is 1 for a token that was not drawn. `streams`: see
    `baton.kernels.sampling.gumbel`.
    """
    noise = gumbel(_other(streams, KEEPING), drafted.unsqueeze(-1)).squeeze(-1)
    uniform = noise.neg_().exp_().neg_().exp_()
    return uniform * q < p


def leave_out(q: Tensor, tokens: Sequence[Collection[int]]) -> None:
    """Set the probabilities of `tokens` in each row of q [T, V] to zero and renormalise the row, in
    place. A row in which no probability is left is undefined."""
    size = q.shape[-1]
    known = [(row, token) for row, each in enumerate(tokens) for token in each if token < size]
    if not known:
        return
    rows, columns = uploaded(torch.tensor(known), q.device).unbind(-1)
    q[rows, columns] = 0.0
    q /= q.sum(-1, keepdim=True)


def left_of(p: Tensor, q: Tensor) -> Tensor:
    """max(0, p - q), [T, V]; p in rows where that is zero, since p and q then differ only by
    rounding."""
    left = (p - q).clamp_(min=0)
    return torch.where(left.sum(-1, keepdim=True) > 0, left, p)


def redrawn(left: Tensor, streams: Tensor) -> Tensor:
    """The tokens [T] drawn in place of those that are not kept, from max(0, p - q), [T, V]."""
    noise = gumbel_all(_other(streams, REDRAWING), left.shape[-1])
    return best_token(noise.add_(left.log()))


def _other(streams: Tensor, bit: int) -> Tensor:
    other = streams.clone()
    other[:, 3] |= bit
    return other
