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

from collections.abc import Collection, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from baton.core.messages import TokenLogprob
from baton.engine.sampling.allowed_tokens import forbid_tokens
from baton.engine.sampling.sampling_plan import SamplingPlan
from baton.kernels.sampling.best_token import best_finite_token
from baton.kernels.sampling.draw_token import Draws, draw_related, draw_token, relate
from baton.kernels.sampling.token_filter import Filters, shortlist
from baton.kernels.sampling.token_penalties import penalise
from baton.kernels.sampling.typical import keep_typical


class Drawn(NamedTuple):
    """The draw of each row, in order, where the logits are."""

    tokens: Tensor  # [S] int64
    are_finite: Tensor  # [S] bool; where it is not, the token means nothing, but is one


class Sampled(NamedTuple):
    """The tokens of each row, in order, on the host."""

    tokens: list[int]
    are_finite: list[bool]
    """Whether the row's raw logits are all finite; if not, its token means nothing."""
    logprob_by_row: dict[int, TokenLogprob]
    """Logprobs of the raw logits, for those rows that ask."""


@torch.inference_mode()
def draw(logits: Tensor, plan: SamplingPlan, eos_token_ids: Collection[int]) -> Drawn:
    """Draw one token a row from float32 logits [S, V], which are left as they are.

    A row of logits that are not numbers gives an arbitrary token and disturbs no other row. The
    next draw from the same plan is of the tokens behind these. Only if the plan `needs_host` must
    their requests have them by then; else nothing here waits for the device.
    """
    return _drawn(logits, plan, eos_token_ids)


def _drawn(logits: Tensor, plan: SamplingPlan, eos_token_ids: Collection[int]) -> Drawn:
    plan.next_draw()
    scores = _transform(logits, plan, eos_token_ids)
    tokens, are_finite = best_finite_token(scores)
    if scores is not logits:
        _, are_finite = best_finite_token(logits)
    draws = plan.draws()
    if draws is not None:
        tokens = tokens.index_copy(0, draws.rows, _draw(scores, tokens, draws, plan))
    plan.drew(tokens)
    return Drawn(tokens, are_finite)


@torch.inference_mode()
def sample(logits: Tensor, plan: SamplingPlan, eos_token_ids: Collection[int]) -> Sampled:
    """As `draw`, read by the host."""
    drawn = _drawn(logits, plan, eos_token_ids)
    tokens = drawn.tokens.tolist()
    return Sampled(tokens, drawn.are_finite.tolist(), _asked_logprobs(logits, plan, tokens))


@torch.inference_mode()
def prompt_logprobs(logits: Tensor, next_tokens: Sequence[int], num_top: int) -> list[TokenLogprob]:
    """What the model said, in float32 logits [n, V], of the n tokens that follow in the prompt."""
    return _logprobs(logits, next_tokens, [num_top] * len(next_tokens))


def _transform(logits: Tensor, plan: SamplingPlan, eos_token_ids: Collection[int]) -> Tensor:
    """All that comes before temperature; the logits themselves if nothing does."""
    scores = logits
    occurrences = plan.occurrences()
    if plan.penalties is not None and occurrences is not None:
        scores = penalise(scores, plan.penalties, occurrences)
    bias = plan.bias(logits.shape[-1])
    if bias is not None:  # it only shifts: -100 makes a token next to impossible, no more
        scores = scores.index_put((bias.rows, bias.tokens), bias.shifts, accumulate=True)
    if plan.ruled:
        scores = forbid_tokens(scores, plan.rows, eos_token_ids)
    return scores


def _draw(scores: Tensor, best: Tensor, draws: Draws, plan: SamplingPlan) -> Tensor:
    """A token for each row that is drawn."""
    tokens = draw_token(scores, best, draws)
    if plan.typical:
        at = [plan.drawn.index(row) for row in plan.typical]
        tokens[at] = _draw_typical(scores, draws, at, plan)
    return tokens


def _draw_typical(scores: Tensor, draws: Draws, at: Sequence[int], plan: SamplingPlan) -> Tensor:
    """The same for some of them. Typical is what is so among the tokens that top-k leaves."""
    filters = Filters(*(values[at] for values in draws.filters))
    relative = relate(scores[plan.typical], draws.temperature[at])
    if bool(filters.top_k.any()):
        ones = torch.ones_like(filters.top_p)
        floor = shortlist(relative, Filters(filters.top_k, ones, 1 - ones)).floor
        relative = relative.masked_fill(relative < floor, -torch.inf)
    typical_p = torch.tensor([float(plan.rows[i].params.typical_p) for i in plan.typical])
    relative = keep_typical(relative, typical_p.to(scores.device))
    return draw_related(relative, filters, draws.streams[at])


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
