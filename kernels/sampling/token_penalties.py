"""Penalties: lowers the logits of tokens that occurred already.

With n the number of times a token occurs in the output, and seen if in prompt or output at all:

    repetition (Keskar et al. 2019)   x = x / r if x > 0 else x * r      if seen
    presence, frequency (OpenAI)      x = x - p [n > 0] - f n

S rows, V vocabulary, n tokens that occur in some row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Penalties:
    """One float32 value per row, [S] each."""

    repetition: Tensor
    presence: Tensor
    frequency: Tensor


@dataclass(frozen=True, slots=True)
class Occurrences:
    """The distinct tokens in prompt or output of each row, concatenated; [n] int64 each."""

    rows: Tensor
    tokens: Tensor
    counts: Tensor
    """Number of times in the output."""


def penalise(logits: Tensor, penalties: Penalties, occurrences: Occurrences) -> Tensor:
    """Returns new logits [S, V], changed for tokens that occur."""
    rows, counts = occurrences.rows, occurrences.counts
    names = occurrences.rows * logits.shape[-1] + occurrences.tokens
    scores = logits.flatten().clone()
    before, factor = scores[names], penalties.repetition[rows]
    repeated = torch.where(before > 0, before / factor, before * factor)
    lowered = penalties.presence[rows] + penalties.frequency[rows] * counts
    scores[names] = repeated - torch.where(counts > 0, lowered, 0)
    return scores.view_as(logits)


def reference(
    logits: Sequence[float],
    penalties: tuple[float, float, float],
    prompt: Sequence[int],
    output: Sequence[int],
) -> list[float]:
    """The definition, for one row; penalties are repetition, presence, frequency."""
    repetition, presence, frequency = penalties
    result = list(logits)
    for token, logit in enumerate(logits):
        if token in prompt or token in output:
            result[token] = logit / repetition if logit > 0 else logit * repetition
        count = list(output).count(token)
        result[token] -= presence * (count > 0) + frequency * count
    return result
