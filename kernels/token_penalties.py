"""Logits lowered for tokens that occurred already.

With n the times a token occurs in the output, and seen if in prompt or output at all:

    repetition (Keskar et al. 2019)   x = x / r if x > 0 else x * r      if seen
    presence, frequency (OpenAI)      x = x - p [n > 0] - f n

S rows, V vocabulary; tokens of all rows end to end, named by row * V + token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Penalties:
    """One float32 value a row, [S] each."""

    repetition: Tensor
    presence: Tensor
    frequency: Tensor


def penalise(logits: Tensor, penalties: Penalties, prompts: Tensor, outputs: Tensor) -> Tensor:
    """Return new logits [S, V]; `prompts` and `outputs` are the names of their tokens.

    Only the named logits are touched. A name may repeat: it is read before it is written, and all
    its writes are equal.
    """
    vocab_size = logits.shape[-1]
    scores = logits.flatten().clone()
    seen = torch.cat((prompts, outputs))
    seen_logits, factor = scores[seen], penalties.repetition[seen // vocab_size]
    scores[seen] = torch.where(seen_logits > 0, seen_logits / factor, seen_logits * factor)
    rows, counts = outputs // vocab_size, torch.bincount(outputs, minlength=1)[outputs]
    lowered = penalties.presence[rows] + penalties.frequency[rows] * counts
    scores[outputs] = scores[outputs] - lowered
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
