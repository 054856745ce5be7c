"""From logits to tokens: a batch of rows, each with its own parameters, drawn together.

    raw logits -> penalties -> minimum length -> temperature -> top-k -> top-p -> min-p -> draw

The draw takes the largest of score plus Gumbel noise; the noise is a function of (seed, choice,
position, token), so a row draws the same token in any batch, on any replica. Rows of temperature 0
take the largest score after the minimum length, without noise.

S rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from baton.core.messages import SamplingParams, TokenLogprob
from baton.kernels.gumbel import SPREAD, gumbel, gumbel_all
from baton.kernels.token_filter import filter_tokens
from baton.kernels.token_penalties import Penalties, penalise

WORD = 0xFFFFFFFF
MIN_TEMPERATURE = 1e-30
"""Below it float32 would divide by zero."""


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """One row of logits. The token to be drawn has position `len(prompt) + len(output)`."""

    params: SamplingParams
    prompt: Sequence[int]
    output: Sequence[int]


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
    scores = _forbid_early_stops(_penalise(logits, rows), rows, eos_token_ids)
    tokens = _choose(scores, rows).tolist()
    logprobs = _logprobs(logits, rows, tokens)
    return [SampledToken(token, logprobs.get(row)) for row, token in enumerate(tokens)]


def _penalise(logits: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    chosen = _where(rows, lambda row: _has_penalties(row.params))
    if not chosen:
        return logits
    picked = [rows[i] for i in chosen]
    penalties = Penalties(
        repetition=_column(picked, lambda p: float(p.repetition_penalty), logits),
        presence=_column(picked, lambda p: float(p.presence_penalty), logits),
        frequency=_column(picked, lambda p: float(p.frequency_penalty), logits),
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


def _forbid_early_stops(
    scores: Tensor, rows: Sequence[SamplingRow], eos_token_ids: Collection[int]
) -> Tensor:
    """Tokens that would end an output shorter than min_tokens cannot be drawn.

    Stop tokens beyond the vocabulary are never drawn anyway.
    """
    places = [
        (i, token)
        for i, row in enumerate(rows)
        if len(row.output) < row.params.min_tokens
        for token in {*row.params.stop_token_ids, *(() if row.params.ignore_eos else eos_token_ids)}
        if 0 <= token < scores.shape[-1]
    ]
    if not places:
        return scores
    row_ids, token_ids = torch.tensor(places, device=scores.device).unbind(1)
    scores = scores.clone()
    scores[row_ids, token_ids] = -torch.inf
    return scores


def _choose(scores: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    drawn = _where(rows, lambda row: row.params.temperature > 0)
    if len(drawn) == len(rows):
        return _draw(scores, rows)
    tokens = scores.argmax(-1)
    if drawn:
        tokens[drawn] = _draw(scores[drawn], [rows[i] for i in drawn])
    return tokens


def _draw(scores: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    """Temperature, filters and noise."""
    temperature = _column(rows, lambda p: max(p.temperature, MIN_TEMPERATURE), scores)
    scores = (scores - scores.amax(-1, keepdim=True)) / temperature.unsqueeze(-1)  # best: 0
    if any(row.params.top_k or row.params.top_p < 1 or row.params.min_p > 0 for row in rows):
        scores = filter_tokens(
            scores,
            _column(rows, lambda p: p.top_k, scores),
            _column(rows, lambda p: float(p.top_p), scores),
            _column(rows, lambda p: float(p.min_p), scores),
        )
    streams = torch.tensor([_stream(row) for row in rows], device=scores.device)
    num_live = max(1, int((scores >= -SPREAD).sum(-1).max()))
    if 4 * num_live >= scores.shape[-1]:
        return (scores + gumbel_all(streams, scores.shape[-1])).argmax(-1)
    best, tokens = scores.topk(num_live, dim=-1)
    winners = (best + gumbel(streams, tokens)).argmax(-1, keepdim=True)
    return tokens.gather(-1, winners).squeeze(-1)


def _stream(row: SamplingRow) -> tuple[int, int, int, int]:
    seed, position = row.params.seed, len(row.prompt) + len(row.output)
    return seed & WORD, (seed >> 32) & WORD, position, row.params.choice & WORD


def _logprobs(
    logits: Tensor, rows: Sequence[SamplingRow], tokens: Sequence[int]
) -> dict[int, TokenLogprob]:
    """By row, for those that ask."""
    asked = _where(rows, lambda row: row.params.num_logprobs is not None)
    if not asked:
        return {}
    logprobs = logits[asked].log_softmax(-1)
    sampled = torch.tensor([tokens[i] for i in asked], device=logits.device).unsqueeze(-1)
    num_top = min(max(rows[i].params.num_logprobs or 0 for i in asked), logits.shape[-1])
    top = logprobs.topk(num_top, dim=-1)
    return {
        i: TokenLogprob(tokens[i], logprob, tuple(ranked)[: rows[i].params.num_logprobs])
        for i, (logprob,), ranked in zip(
            asked,
            logprobs.gather(-1, sampled).tolist(),
            map(zip, top.indices.tolist(), top.values.tolist()),
            strict=True,
        )
    }


def _where(rows: Sequence[SamplingRow], holds: Callable[[SamplingRow], bool]) -> list[int]:
    return [i for i, row in enumerate(rows) if holds(row)]


def _column(
    rows: Sequence[SamplingRow], value: Callable[[SamplingParams], float], like: Tensor
) -> Tensor:
    """One parameter of each row, [S]: float32 if the values are floats, int64 if integers."""
    return torch.tensor([value(row.params) for row in rows], device=like.device)
