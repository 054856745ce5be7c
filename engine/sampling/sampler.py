"""Samples tokens from logits, for a batch of rows with their own parameters.

    raw logits -> scores -> best tokens -> tokens drawn      engine/sampling/sampling_plan.py

Logprobs are those of the raw logits, before penalties and temperature.

S rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from baton.core.sampling import TokenLogprob
from baton.engine.sampling.acceptance import leave_out
from baton.engine.sampling.sampling_plan import SamplingPlan
from baton.kernels.sampling.best_token import best_finite_on_host, best_finite_token


class Drawn(NamedTuple):
    """The draw of each row, in order, on the logits' device."""

    tokens: Tensor  # [S] int64
    are_finite: Tensor  # [S] bool; where False, the token is meaningless but within the vocabulary


class Sampled(NamedTuple):
    """The tokens of each row, in order, on the host."""

    tokens: list[int]
    are_finite: list[bool]
    """Whether all raw logits of the row are finite; if not, its token has no meaning."""
    logprob_by_row: dict[int, TokenLogprob]
    """Logprobs of the raw logits, for the rows that ask for them."""


@torch.inference_mode()
def draw(logits: Tensor, plan: SamplingPlan, eos_token_ids: Collection[int]) -> Drawn:
    """Draw one token per row from float32 logits [S, V], which are not changed. A row with NaN
    gives an arbitrary token and does not affect other rows. The next draw from the same plan draws
    the tokens after these. If the plan `needs_host`, the requests must have these tokens by then;
    otherwise nothing here waits for the device.
    """
    return _drawn(logits, plan, eos_token_ids)


@torch.inference_mode()
def draw_and_weigh(
    logits: Tensor, plan: SamplingPlan, eos_token_ids: Collection[int]
) -> tuple[Drawn, Tensor]:
    """Tokens as `draw` gives them, and the probability of each, [S], after penalties and rules but
    before temperature."""
    plan.next_draw()
    scores = plan.scores(logits, eos_token_ids)
    drawn = _drawn_by(scores, logits, plan)
    shares = scores.softmax(-1).gather(-1, drawn.tokens.unsqueeze(-1)).squeeze(-1)
    return drawn, shares.nan_to_num_(0.0)


def chances_of(
    logits: Tensor,
    plan: SamplingPlan,
    eos_token_ids: Collection[int],
    endings: Sequence[Collection[int]],
) -> dict[int, Tensor]:
    """The distribution [V] that `draw_and_weigh` drew from, by row drawn with noise, without the
    row's tokens in `endings`."""
    if not plan.drawn:
        return {}
    chances = plan.chances(plan.scores(logits, eos_token_ids))
    leave_out(chances, [endings[row] for row in plan.drawn])
    return dict(zip(plan.drawn, chances, strict=True))


def _drawn(logits: Tensor, plan: SamplingPlan, eos_token_ids: Collection[int]) -> Drawn:
    plan.next_draw()
    return _drawn_by(plan.scores(logits, eos_token_ids), logits, plan)


def _drawn_by(scores: Tensor, logits: Tensor, plan: SamplingPlan) -> Drawn:
    best, are_finite = best_finite_token(scores)
    if scores is not logits:
        _, are_finite = best_finite_token(logits)
    tokens = plan.tokens(scores, best)
    plan.drew(tokens)
    return Drawn(tokens, are_finite)


def sample(logits: Tensor, plan: SamplingPlan, eos_token_ids: Collection[int]) -> Sampled:
    """Tokens as `draw` gives them, read by the host."""
    if plan.is_plain and (best := best_finite_on_host(logits)) is not None:
        return Sampled(*best, {})
    return _sample(logits, plan, eos_token_ids)


@torch.inference_mode()
def _sample(logits: Tensor, plan: SamplingPlan, eos_token_ids: Collection[int]) -> Sampled:
    tokens, are_finite = _on_host(_drawn(logits, plan, eos_token_ids))
    return Sampled(tokens, are_finite, _asked_logprobs(logits, plan, tokens))


def _on_host(drawn: Drawn) -> tuple[list[int], list[bool]]:
    if not drawn.tokens.is_cuda:
        return drawn.tokens.tolist(), drawn.are_finite.tolist()
    found = torch.stack((drawn.tokens, drawn.are_finite.to(drawn.tokens.dtype)))
    tokens, are_finite = found.tolist()  # the host waits for the device once
    return tokens, list(map(bool, are_finite))


@torch.inference_mode()
def prompt_logprobs(logits: Tensor, next_tokens: Sequence[int], num_top: int) -> list[TokenLogprob]:
    """The logprobs of the n following tokens of the prompt, from float32 logits [n, V]."""
    return _logprobs(logits, next_tokens, [num_top] * len(next_tokens))


def _asked_logprobs(
    logits: Tensor, plan: SamplingPlan, tokens: Sequence[int]
) -> dict[int, TokenLogprob]:
    """Logprobs by row, for the rows that ask for them."""
    if not plan.asked:
        return {}
    nums_top = [plan.rows[i].params.num_logprobs or 0 for i in plan.asked]
    said = _logprobs(logits[plan.asked], [tokens[i] for i in plan.asked], nums_top)
    return dict(zip(plan.asked, said, strict=True))


def _logprobs(logits: Tensor, tokens: Sequence[int], nums_top: Sequence[int]) -> list[TokenLogprob]:
    """The logprobs of each row: its token's, and those of as many of the most probable tokens as it
    asks for."""
    if not tokens:
        return []
    logprobs = logits.log_softmax(-1)
    chosen = logprobs.gather(-1, torch.tensor(tokens, device=logits.device).unsqueeze(-1))
    top = logprobs.topk(min(max(nums_top), logits.shape[-1]), dim=-1)
    ranked = map(zip, top.indices.tolist(), top.values.tolist())
    return [
        TokenLogprob(token, logprob, tuple(best)[:num_top])
        for token, (logprob,), best, num_top in zip(
            tokens, chosen.tolist(), ranked, nums_top, strict=True
        )
    ]
