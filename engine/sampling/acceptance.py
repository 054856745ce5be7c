"""Speculative sampling (Leviathan et al. 2023): accepts drafted tokens such that outputs have the
model's distribution.

    x, drawn from q, is kept with probability  min(1, p(x) / q(x))
    else a token is drawn from                 max(0, p - q), renormalised

A token that was looked up may have been chosen in whatever way: its q is 1, and of all others 0.
One that was drawn counts as drawn from q only if it was offered whatever it is: see `leave_out`.

Its randomness is of streams of its own. Who drafts by chance has another one: whether a token is
drafted at all may depend on it, and where none was the model draws with its own.

T drafted tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from baton.kernels.gpu.upload import uploaded
from baton.kernels.sampling.best_token import best_token
from baton.kernels.sampling.gumbel import gumbel, gumbel_all

DRAFTING, KEEPING, REDRAWING = 1 << 29, 1 << 30, 1 << 31
"""Bits of the choice of a stream: what is drafted, whether it is kept, what is drawn if not."""


def are_kept(p: Tensor, q: Tensor | float, drafted: Tensor, streams: Tensor) -> Tensor:
    """Probabilities of the drafted tokens [T] by the model and by who drafted them, [T] each
    -> [T] bool.

    `streams`: see `baton.kernels.sampling.gumbel`. Where `q` is 1, the token may have been chosen
    in whatever way.
    """
    noise = gumbel(_other(streams, KEEPING), drafted.unsqueeze(-1)).squeeze(-1)
    uniform = noise.neg_().exp_().neg_().exp_()
    return uniform * q < p


def leave_out(q: Tensor, tokens: Sequence[Collection[int]]) -> None:
    """Make each row of q [T, V] what is drawn from where its `tokens` are not offered if they are
    drawn: the others, as likely to each other as before. A row without others means nothing."""
    size = q.shape[-1]
    known = [(row, token) for row, each in enumerate(tokens) for token in each if token < size]
    if not known:
        return
    rows, columns = uploaded(torch.tensor(known), q.device).unbind(-1)
    q[rows, columns] = 0.0
    q /= q.sum(-1, keepdim=True)


def left_of(p: Tensor, q: Tensor) -> Tensor:
    """[T, V] max(0, p - q); p where nothing is left, for the two differ by roundings alone then."""
    left = (p - q).clamp_(min=0)
    return torch.where(left.sum(-1, keepdim=True) > 0, left, p)


def redrawn(left: Tensor, streams: Tensor) -> Tensor:
    """A token [T] for each that is not kept, of what the model has left [T, V]: max(0, p - q)."""
    noise = gumbel_all(_other(streams, REDRAWING), left.shape[-1])
    return best_token(noise.add_(left.log()))


def _other(streams: Tensor, bit: int) -> Tensor:
    other = streams.clone()
    other[:, 3] |= bit
    return other
