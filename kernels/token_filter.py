"""Which tokens may be drawn: top-k, then top-p, then min-p.

    top-k   the k most probable
    top-p   of those, renormalised, the fewest most probable that hold mass p (Holtzman et al. 2020)
    min-p   of those, the ones at least m times as probable as the best (Nguyen et al. 2025)

Each is a threshold on the score, so tokens of equal score stay or go together and the order in
which a device sorts them does not matter. At least one token always stays.

S rows, V vocabulary, W candidates: the W best of a row, sorted, usually far fewer than V.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

FIRST_CANDIDATES = 128


def filter_tokens(scores: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Return scores [S, V] with -inf where a token may not be drawn.

    top_k [S] int64, 0 for all; top_p and min_p [S] float32, 1 and 0 for all.
    """
    vocab_size = scores.shape[-1]
    top_k = torch.where(top_k > 0, top_k, vocab_size).clamp_(max=vocab_size)
    limited = top_k < vocab_size
    largest_k = int(torch.where(limited, top_k, 0).max())
    width = min(vocab_size, max(largest_k, FIRST_CANDIDATES))
    best = scores.topk(width, dim=-1).values  # [S, W]
    kth = best.gather(-1, top_k.clamp(max=width).unsqueeze(-1) - 1)
    scores = scores.masked_fill(limited.unsqueeze(-1) & (scores < kth), -torch.inf)
    floor = best[:, :1] + min_p.log().unsqueeze(-1)
    if bool((top_p < 1).any()):
        floor = torch.maximum(floor, _top_p_floor(scores, best, top_p))
    return scores.masked_fill(scores < floor, -torch.inf)


def _top_p_floor(scores: Tensor, best: Tensor, top_p: Tensor) -> Tensor:
    """The score [S, 1] of the last token of each row's nucleus; -inf where top_p is 1."""
    unlimited = (top_p >= 1).unsqueeze(-1)
    total = scores.logsumexp(-1, keepdim=True)
    while True:
        mass = (best - total).double().exp_().cumsum(-1)  # [S, W]
        is_short = mass < top_p.double().unsqueeze(-1)
        if best.shape[-1] == scores.shape[-1] or not bool((is_short[:, -1:] & ~unlimited).any()):
            break
        best = scores.topk(min(8 * best.shape[-1], scores.shape[-1]), dim=-1).values
    last = is_short.sum(-1, keepdim=True).clamp_(max=best.shape[-1] - 1)
    return best.gather(-1, last).masked_fill_(unlimited, -torch.inf)


def reference(scores: Sequence[float], top_k: int, top_p: float, min_p: float) -> set[int]:
    """The definition: the tokens of one row that may be drawn. Slow, and in Python's floats."""
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
