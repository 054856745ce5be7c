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

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from baton.core.messages import SamplingParams, TokenLogprob
from baton.engine.allowed_tokens import forbid_tokens
from baton.engine.sampling_row import SamplingRow, column, where
from baton.kernels.best_token import best_token
from baton.kernels.gumbel import SPREAD, gumbel, gumbel_all
from baton.kernels.token_filter import Filters, shortlist
from baton.kernels.token_penalties import Penalties, penalise
from baton.kernels.typical import keep_typical

__all__ = ["SampledToken", "SamplingRow", "prompt_logprobs", "sample"]

WORD = 0xFFFFFFFF
MIN_TEMPERATURE = 1e-30
"""Below it float32 would divide by zero."""
LEAST_P = math.exp(-SPREAD - 1)
"""Tokens this improbable beside the best are never drawn: no noise makes up for it."""


@dataclass(frozen=True, slots=True)
class SampledToken:
    token: int
    logprob: TokenLogprob | None
    """Of the raw logits; None unless the row asked for it."""


@torch.inference_mode()
def sample(
    logits: Tensor, rows: Sequence[SamplingRow], eos_token_ids: Collection[int]
) -> list[SampledToken]:
    """Draw one token a row from float32 logits [S, V], which are left as they are.

    A row of logits that are not numbers gives an arbitrary token and disturbs no other row.
    """
    scores = forbid_tokens(_add_bias(_penalise(logits, rows), rows), rows, eos_token_ids)
    tokens = _choose(scores, rows).tolist()
    logprobs = _asked_logprobs(logits, rows, tokens)
    return [SampledToken(token, logprobs.get(row)) for row, token in enumerate(tokens)]


@torch.inference_mode()
def prompt_logprobs(logits: Tensor, next_tokens: Sequence[int], num_top: int) -> list[TokenLogprob]:
    """What the model said, in float32 logits [n, V], of the n tokens that follow in the prompt."""
    return _logprobs(logits, next_tokens, [num_top] * len(next_tokens))


def _penalise(logits: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    chosen = where(rows, lambda row: _has_penalties(row.params))
    if not chosen:
        return logits
    picked = [rows[i] for i in chosen]
    penalties = Penalties(
        repetition=column(picked, lambda p: float(p.repetition_penalty), logits),
        presence=column(picked, lambda p: float(p.presence_penalty), logits),
        frequency=column(picked, lambda p: float(p.frequency_penalty), logits),
    )
    names = [_names([getattr(row, of) for row in picked], logits) for of in ("prompt", "output")]
    scores = logits.clone()
    scores[chosen] = penalise(logits[chosen], penalties, *names)
    return scores


def _has_penalties(params: SamplingParams) -> bool:
    return (
        params.repetition_penalty != 1
        or params.presence_penalty != 0
        or params.frequency_penalty != 0
    )


def _names(tokens: Sequence[Sequence[int]], logits: Tensor) -> Tensor:
    """row * V + token, for all tokens of all rows."""
    vocab_size = logits.shape[-1]
    flat = torch.tensor(list(chain.from_iterable(tokens)), dtype=torch.int64)
    lens = torch.tensor([len(row) for row in tokens])
    return (flat + torch.repeat_interleave(lens) * vocab_size).to(logits.device)


def _add_bias(scores: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    """A bias only shifts: -100 makes a token next to impossible, no more."""
    biased = [
        (i, token, bias)
        for i, row in enumerate(rows)
        for token, bias in row.params.logit_bias
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


def _choose(scores: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    drawn = where(rows, lambda row: row.params.temperature > 0)
    if len(drawn) == len(rows):
        return _draw(scores, rows)
    tokens = best_token(scores)
    if drawn:
        tokens[drawn] = _draw(scores[drawn], [rows[i] for i in drawn])
    return tokens


def _draw(scores: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    """Temperature, filters and noise."""
    vocab_size = scores.shape[-1]
    temperature = column(rows, lambda p: max(p.temperature, MIN_TEMPERATURE), scores)
    scores = (scores - scores.amax(-1, keepdim=True)) / temperature.unsqueeze(-1)
    scores = _keep_typical(scores, rows)
    streams = torch.tensor([_stream(row) for row in rows], device=scores.device)
    if any(row.params.top_k or row.params.top_p < 1 or row.params.min_p > 0 for row in rows):
        listed = shortlist(scores, _filters(rows, scores))
        if listed.is_complete:
            best = listed.scores.masked_fill(listed.scores < listed.floor, -torch.inf)
            return _noisy_best(best, listed.tokens, streams)
        scores = scores.masked_fill_(scores < listed.floor, -torch.inf)
    may_win = scores >= scores.amax(-1, keepdim=True) - SPREAD
    num_live = max(1, int(may_win.sum(-1).max()))
    if 4 * num_live >= vocab_size:
        return best_token(scores + gumbel_all(streams, vocab_size))
    return _noisy_best(*scores.topk(num_live, dim=-1), streams)


def _noisy_best(scores: Tensor, tokens: Tensor, streams: Tensor) -> Tensor:
    """Of some tokens [S, n], the one [S] that is best with its noise."""
    winner = (scores + gumbel(streams, tokens)).argmax(-1, keepdim=True)
    return tokens.gather(-1, winner).squeeze(-1)


def _keep_typical(scores: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    """Typical is what is so among the tokens that top-k leaves."""
    chosen = where(rows, lambda row: row.params.typical_p < 1)
    if not chosen:
        return scores
    picked, these = [rows[i] for i in chosen], scores[chosen]
    if any(row.params.top_k for row in picked):
        top_k = column(picked, lambda p: p.top_k, scores)
        ones = torch.ones_like(top_k, dtype=scores.dtype)
        floor = shortlist(these, Filters(top_k, ones, 1 - ones)).floor
        these = these.masked_fill(these < floor, -torch.inf)
    scores[chosen] = keep_typical(these, column(picked, lambda p: float(p.typical_p), scores))
    return scores


def _filters(rows: Sequence[SamplingRow], like: Tensor) -> Filters:
    return Filters(
        top_k=column(rows, lambda p: p.top_k, like),
        top_p=column(rows, lambda p: float(p.top_p), like),
        min_p=column(rows, lambda p: max(float(p.min_p), LEAST_P), like),
    )


def _stream(row: SamplingRow) -> tuple[int, int, int, int]:
    seed, position = row.params.seed, len(row.prompt) + len(row.output)
    return seed & WORD, (seed >> 32) & WORD, position, row.params.choice & WORD


def _asked_logprobs(
    logits: Tensor, rows: Sequence[SamplingRow], tokens: Sequence[int]
) -> dict[int, TokenLogprob]:
    """By row, for those that ask."""
    asked = where(rows, lambda row: row.params.num_logprobs is not None)
    if not asked:
        return {}
    nums_top = [rows[i].params.num_logprobs or 0 for i in asked]
    said = _logprobs(logits[asked], [tokens[i] for i in asked], nums_top)
    return dict(zip(asked, said, strict=True))


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
