"""Typical-p: keeps the tokens whose information is nearest the expected (Meister et al. 2023).

    p = softmax(scores)      H = -sum p log p      distance = | -log p - H |

The tokens with the smallest distances are kept, as few as hold mass m together. Like the other
filters it is a threshold, here on the distance: tokens of equal distance are kept or dropped
together.

S rows, V vocabulary, W candidates: the W nearest of a row, sorted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

FIRST_CANDIDATES = 256


def keep_typical(scores: Tensor, typical_p: Tensor) -> Tensor:
    """Return scores [S, V] with -inf where a token is not typical; typical_p [S] is above 0.

    A row of 1 is left as it is.
    """
    logprobs = scores.log_softmax(-1)
    probs = logprobs.exp()
    # Summed in double, so that the order in which a device adds does not affect a row.
    entropy = -(logprobs * probs).nansum(-1, keepdim=True, dtype=torch.float64).float()
    distance = (-logprobs - entropy).abs_()
    limit = _mass_distance(distance, probs, typical_p.double().unsqueeze(-1))
    return scores.masked_fill(distance > limit, -torch.inf)


def _mass_distance(distance: Tensor, probs: Tensor, typical_p: Tensor) -> Tensor:
    """The distance [S, 1] of the last token that is needed for the mass; inf where that is 1."""
    vocab_size, width = distance.shape[-1], FIRST_CANDIDATES
    unlimited = typical_p >= 1
    while True:
        width = min(width, vocab_size)
        nearest, tokens = distance.topk(width, dim=-1, largest=False)  # [S, W]
        mass = probs.gather(-1, tokens).double().cumsum(-1)
        is_short = mass < typical_p
        if width == vocab_size or not bool((is_short[:, -1:] & ~unlimited).any()):
            break
        width *= 8
    last = is_short.sum(-1, keepdim=True).clamp_(max=width - 1)
    return nearest.gather(-1, last).masked_fill_(unlimited, torch.inf)


def reference(scores: Sequence[float], typical_p: float) -> set[int]:
    """The definition: the tokens of one row that are kept. Slow, and in Python's floats."""
    total = math.log(sum(math.exp(s) for s in scores))
    information = [total - s for s in scores]
    entropy = sum(i * math.exp(-i) for i in information if i < math.inf)
    distance = [abs(i - entropy) for i in information]
    mass = 0.0
    for limit, i in sorted(zip(distance, information, strict=True)):
        mass += math.exp(-i)
        if mass >= typical_p:
            return {t for t, d in enumerate(distance) if d <= limit}
    return set(range(len(scores)))
