"""What the sampler knows of each row of logits, and columns of one parameter over the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from baton.core.messages import SamplingParams
from baton.engine.grammar import TokenMatcher


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """One row of logits. The token to be drawn has position `len(prompt) + len(output)`."""

    params: SamplingParams
    prompt: Sequence[int]
    output: Sequence[int]
    matcher: TokenMatcher | None = None
    """Of the grammar in `params`, behind `output`."""


def where(rows: Sequence[SamplingRow], holds: Callable[[SamplingRow], bool]) -> list[int]:
    return [i for i, row in enumerate(rows) if holds(row)]


def column(
    rows: Sequence[SamplingRow], value: Callable[[SamplingParams], float], like: Tensor
) -> Tensor:
    """One parameter of each row, [S]: float32 if the values are floats, int64 if integers."""
    return torch.tensor([value(row.params) for row in rows], device=like.device)
