"""From logits to tokens: a batch of rows, each with its own parameters, drawn together.

    raw logits -> penalties -> bias -> what may not be drawn -> temperature
               -> top-k -> typical-p -> top-p -> min-p -> draw

The draw takes the largest of score plus Gumbel noise; the noise is a function of (seed, choice,
position, token), so a row draws the same token in any batch, on any replica. Rows of temperature 0
take the largest score before temperature, without noise.

Logprobs are those of the raw logits: what the model said, whatever was made of it.

S rows, V vocabulary.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from baton.core.messages import TokenLogprob
from baton.engine.allowed_tokens import forbid_tokens
from baton.engine.sampling_plan import SamplingPlan
from baton.kernels.best_token import best_finite_token
from baton.kernels.draw_token import Draws, draw_related, draw_token, relate
from baton.kernels.token_filter import Filters, shortlist
from baton.kernels.token_penalties import Occurrences, penalise
from baton.kernels.typical import keep_typical


class Sampled(NamedTuple):
    """Of each row, in order."""

    tokens: list[int]
    are_finite: list[bool]
    """Whether the row's raw logits are all finite; if not, its token means nothing."""
    logprob_by_row: dict[int, TokenLogprob]
    """Of the raw logits; of those rows that ask."""


@torch.inference_mode()
def sample(logits: Tensor, plan: SamplingPlan, eos_token_ids: Collection[int]) -> Sampled:
    """Draw one token a row from float32 logits [S, V], which are left as they are.

    A row of logits that are not numbers gives an arbitrary token and disturbs no other row.
    """
    scores = _transform(logits, plan, eos_token_ids)
    best, are_finite = best_finite_token(scores)
    if scores is not logits:
        _, are_finite = best_finite_token(logits)
    tokens: list[int] = best.tolist()
    draws = plan.draws()
    if draws is not None:
        for row, token in zip(plan.drawn, _draw(scores, best, draws, plan), strict=True):
            tokens[row] = token
    return Sampled(tokens, are_finite.tolist(), _asked_logprobs(logits, plan, tokens))


@torch.inference_mode()
def prompt_logprobs(logits: Tensor, next_tokens: Sequence[int], num_top: int) -> list[TokenLogprob]:
    """What the model said, in float32 logits [n, V], of the n tokens that follow in the prompt."""
    return _logprobs(logits, next_tokens, [num_top] * len(next_tokens))


def _transform(logits: Tensor, plan: SamplingPlan, eos_token_ids: Collection[int]) -> Tensor:
    """All that comes before temperature; the logits themselves if nothing does."""
    scores = logits
    if plan.penalties is not None:
        counts = {i: plan.rows[i].counts() for i in plan.penalised}
        lens = torch.tensor([len(each.tokens) for each in counts.values()])
        occurrences = Occurrences(
            rows=torch.tensor(plan.penalised).repeat_interleave(lens).to(logits.device),
            tokens=_joined([each.tokens for each in counts.values()]).to(logits.device),
            counts=_joined([each.counts for each in counts.values()]).to(logits.device),
        )
        scores = penalise(scores, plan.penalties, occurrences)
    if plan.biased:
        scores = _add_bias(scores, plan)
    if plan.ruled:
        scores = forbid_tokens(scores, plan.rows, eos_token_ids)
    return scores


def _joined(parts: Sequence[array[int]]) -> Tensor:
    words = bytearray().join(parts)
    if not words:
        return torch.empty(0, dtype=torch.int64)
    return torch.frombuffer(words, dtype=torch.int64)


def _add_bias(scores: Tensor, plan: SamplingPlan) -> Tensor:
    """A bias only shifts: -100 makes a token next to impossible, no more."""
    biased = [
        (i, token, bias)
        for i in plan.biased
        for token, bias in plan.rows[i].params.logit_bias
        if 0 <= token < scores.shape[-1]
    ]
    if not biased:
        return scores
    row_ids, token_ids, biases = zip(*biased, strict=True)
    places = (
        torch.tensor(row_ids, device=scores.device),
        torch.tensor(token_ids, device=scores.device),
    )
    shifts = torch.tensor(biases, dtype=scores.dtype, device=scores.device)
    return scores.index_put(places, shifts, accumulate=True)


def _draw(scores: Tensor, best: Tensor, draws: Draws, plan: SamplingPlan) -> list[int]:
    """A token for each row that is drawn."""
    tokens: list[int] = draw_token(scores, best, draws).tolist()
    if plan.typical:
        at = [plan.drawn.index(row) for row in plan.typical]
        for place, token in zip(at, _draw_typical(scores, draws, at, plan), strict=True):
            tokens[place] = token
    return tokens


def _draw_typical(scores: Tensor, draws: Draws, at: Sequence[int], plan: SamplingPlan) -> list[int]:
    """The same for some of them. Typical is what is so among the tokens that top-k leaves."""
    filters = Filters(*(values[at] for values in draws.filters))
    relative = relate(scores[plan.typical], draws.temperature[at])
    if bool(filters.top_k.any()):
        ones = torch.ones_like(filters.top_p)
        floor = shortlist(relative, Filters(filters.top_k, ones, 1 - ones)).floor
        relative = relative.masked_fill(relative < floor, -torch.inf)
    typical_p = torch.tensor([float(plan.rows[i].params.typical_p) for i in plan.typical])
    relative = keep_typical(relative, typical_p.to(scores.device))
    tokens: list[int] = draw_related(relative, filters, draws.streams[at]).tolist()
    return tokens


def _asked_logprobs(
    logits: Tensor, plan: SamplingPlan, tokens: Sequence[int]
) -> dict[int, TokenLogprob]:
    """By row, for those that ask."""
    if not plan.asked:
        return {}
    nums_top = [plan.rows[i].params.num_logprobs or 0 for i in plan.asked]
    said = _logprobs(logits[plan.asked], [tokens[i] for i in plan.asked], nums_top)
    return dict(zip(plan.asked, said, strict=True))


def _logprobs(logits: Tensor, tokens: Sequence[int], nums_top: Sequence[int]) -> list[TokenLogprob]:
    """One a row: of a token, and of as many of the most probable ones as the row asks for."""
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
