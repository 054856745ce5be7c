"""Rows sampled side by side, looked at one by one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from torch import Tensor

from baton.core.sampling import TokenLogprob
from baton.engine.sampling import sampler
from baton.engine.sampling.sampling_plan import SamplingPlan
from baton.engine.sampling.sampling_row import SamplingRow


class SampledToken(NamedTuple):
    token: int
    logprob: TokenLogprob | None


def sample(
    logits: Tensor, rows: Sequence[SamplingRow], eos_token_ids: Collection[int]
) -> list[SampledToken]:
    """A token of each row."""
    sampled = sampler.sample(logits, SamplingPlan(rows, logits.device), eos_token_ids)
    return [
        SampledToken(token, sampled.logprob_by_row.get(row))
        for row, token in enumerate(sampled.tokens)
    ]
