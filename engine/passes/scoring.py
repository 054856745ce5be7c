"""From the hidden states of a pass to its logits, or to its tokens where these are found without
logits (kernels/products/vocabulary_screen.py)."""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

from baton.engine.passes.runner import Runner
from baton.engine.sampling.sampling_plan import SamplingPlan
from baton.kernels.products.vocabulary_screen import ScreenedTokens

Scored: TypeAlias = Tensor | ScreenedTokens
"""Logits [S, V], or the tokens of S rows."""


def scored(hidden: Tensor, runner: Runner, *, is_plain: bool) -> Scored:
    """`is_plain`: each row of `hidden` [S, D] takes its best token, without logprobs."""
    best = runner.screened_tokens(hidden) if is_plain else None
    return runner.logits(hidden) if best is None else best


def scored_by(hidden: Tensor, runner: Runner, plan: SamplingPlan) -> Scored:
    """The next draw of `plan`, which has all rows of `hidden` [S, D]. If tokens are found, the draw
    is done."""
    draws = None if plan.is_plain else plan.next_draws()
    if draws is None:
        return scored(hidden, runner, is_plain=plan.is_plain)
    drawn = runner.screened_tokens(hidden, draws)
    if drawn is None:
        return runner.logits(hidden)
    plan.drew(torch.tensor(drawn.tokens))
    return drawn
