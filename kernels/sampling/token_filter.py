"""Filters tokens: top-k, then top-p, then min-p.

    top-k   the k most probable
    top-p   of those, renormalised, the fewest most probable that hold mass p (Holtzman et al. 2020)
    min-p   of those, the ones at least m times as probable as the best (Nguyen et al. 2025)

Each is a threshold on the score, so tokens of equal score are kept or dropped together, and the
order in which a device sorts them does not matter. At least one token is always kept.

S rows, V vocabulary, W candidates: the W best of a row, sorted, usually far fewer than V.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

FIRST_CANDIDATES = 128


class Filters(NamedTuple):
    """One value per row, [S] each."""

    top_k: Tensor
    """int64; 0 keeps all."""
    top_p: Tensor
    """float32; 1 keeps all."""
    min_p: Tensor
    """float32; 0 keeps all."""


@dataclass(frozen=True, slots=True)
class Shortlist:
    """The best tokens of each row, and the least score that is kept."""

    scores: Tensor  # [S, W] best first
    tokens: Tensor  # [S, W]
    floor: Tensor  # [S, 1]

    @property
    def is_complete(self) -> bool:
        """Whether no token beyond the list is kept."""
        return bool((self.scores[:, -1:] < self.floor).all())


def shortlist(scores: Tensor, filters: Filters) -> Shortlist:
    """The shortest list from scores [S, V] that determines each row's floor."""
    vocab_size = scores.shape[-1]
    is_limited = (filters.top_k > 0) & (filters.top_k < vocab_size)
    top_k = torch.where(is_limited, filters.top_k, 1).unsqueeze(-1)
    width = max(FIRST_CANDIDATES, int(top_k.max()) + 1)
    total = _total(scores) if bool((filters.top_p < 1).any()) else None
    while True:
        best, tokens = scores.topk(min(width, vocab_size), dim=-1)
        kth = best.gather(-1, top_k - 1).masked_fill_(~is_limited.unsqueeze(-1), -torch.inf)
        floor = torch.maximum(kth, best[:, :1] + filters.min_p.log().unsqueeze(-1))
        if total is not None:
            nucleus, is_known = _nucleus_floor(best, kth, total, filters.top_p.unsqueeze(-1))
            floor = torch.maximum(floor, nucleus)
            if width < vocab_size and not is_known:
                width *= 8
                continue
        return Shortlist(best, tokens, floor)


def _total(scores: Tensor) -> Tensor:
    """The mass [S, 1] of all tokens, in multiples of the best one's.

    Summed in double, so that the order in which a device adds does not affect a row.
    """
    relative = scores - scores.amax(-1, keepdim=True)
    return relative.exp_().sum(-1, keepdim=True, dtype=torch.float64)


def _nucleus_floor(best: Tensor, kth: Tensor, total: Tensor, top_p: Tensor) -> tuple[Tensor, bool]:
    """The score [S, 1] of the last token of each row's nucleus, -inf where top_p is 1.

    Also returns whether the candidates reached that far, and held all that top-k kept, in every
    row.
    """
    is_limited, is_open = kth > -torch.inf, top_p >= 1
    weights = (best - best[:, :1]).exp_().double().masked_fill_(best < kth, 0)  # [S, W]
    total = torch.where(is_limited, weights.sum(-1, keepdim=True), total)
    is_short = weights.cumsum(-1) < top_p.double() * total
    last = is_short.sum(-1, keepdim=True).clamp_(max=best.shape[-1] - 1)
    is_unknown = torch.where(is_limited, kth <= best[:, -1:], is_short[:, -1:]) & ~is_open
    return best.gather(-1, last).masked_fill_(is_open, -torch.inf), not bool(is_unknown.any())


def reference(scores: Sequence[float], top_k: int, top_p: float, min_p: float) -> set[int]:
    """The definition: the tokens of one row that are kept. Slow, in Python floats."""
    best = max(scores)
    weight = {t: float(torch.tensor(s - best).double().exp()) for t, s in enumerate(scores)}
    ranked = sorted(weight.values(), reverse=True)
    kept = {t for t, w in weight.items() if top_k == 0 or w >= ranked[min(top_k, len(ranked)) - 1]}
    total, mass = sum(weight[t] for t in kept), 0.0
    for floor in sorted((weight[t] for t in kept), reverse=True):
        mass += floor
        if top_p < 1 and mass >= top_p * total:
            kept = {t for t in kept if weight[t] >= floor}
            break
    return {t for t in kept if weight[t] >= min_p}
