"""The published rule of speculative sampling (Leviathan et al. 2023): drafted tokens are kept so
often that what comes of it is distributed as the model draws.

    x, drawn from q, is kept with probability  min(1, p(x) / q(x))
    else a token is drawn from                 max(0, p - q), renormalised

Its randomness is of streams of its own. Who drafts by chance has another one: whether a token is
drafted at all may depend on it, and where none was the model draws with its own.

T drafted tokens, V vocabulary.
"""

from __future__ import annotations

from torch import Tensor

from baton.kernels.sampling.best_token import best_token
from baton.kernels.sampling.gumbel import gumbel, gumbel_all

DRAFTING, KEEPING, REDRAWING = 1 << 29, 1 << 30, 1 << 31
"""Bits of the choice of a stream: what is drafted, whether it is kept, what is drawn if not."""


def kept_or_redrawn(p: Tensor, q: Tensor, drafted: Tensor, streams: Tensor) -> Tensor:
    """Probabilities of the model and of who drafted, [T, V] each, and tokens [T] drawn from `q`
    -> tokens [T] distributed as `p`.

    `streams`: see `baton.kernels.sampling.gumbel`. Where `q` is 1 for one token, that may have been
    chosen in whatever way.
    """
    at = drafted.unsqueeze(-1)  # [T, 1]
    uniform = gumbel(_other(streams, KEEPING), at).neg().exp().neg().exp()
    is_kept = (uniform * q.gather(-1, at) < p.gather(-1, at)).squeeze(-1)
    rejected = (~is_kept).nonzero().squeeze(-1)
    if not len(rejected):
        return drafted
    left = (p[rejected] - q[rejected]).clamp_(min=0).log_()
    noise = gumbel_all(_other(streams[rejected], REDRAWING), p.shape[-1])
    return drafted.index_copy(0, rejected, best_token(left + noise))


def _other(streams: Tensor, bit: int) -> Tensor:
    other = streams.clone()
    other[:, 3] |= bit
    return other
