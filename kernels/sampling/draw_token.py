"""Draws a token from each row of scores, by temperature, filters and noise.

    x = (score - best) / temperature        kept by top-k, top-p and min-p: x >= floor
    token = the largest of  x + noise(stream, token)

Noise varies by at most SPREAD, so a token further below the best is never drawn, and noise is
computed only for tokens that may win.

S rows of scores, n of them to draw from, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from baton.kernels.cpu import operators
from baton.kernels.sampling import draw_token_cpu as cpu
from baton.kernels.sampling.best_token import best_token
from baton.kernels.sampling.gumbel import SPREAD, gumbel, gumbel_all
from baton.kernels.sampling.token_filter import Filters, shortlist

LEAST_P = math.exp(-SPREAD - 1)
"""Tokens of at most this probability relative to the best are never drawn, whatever the noise."""


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """The sampling settings of n rows."""

    rows: Tensor  # [n] int64, of the scores
    temperature: Tensor  # [n] float32, above 0
    filters: Filters  # [n] each; min-p is at least LEAST_P
    streams: Tensor  # [n, 4] int64: see `baton.kernels.sampling.gumbel`
    is_cut: bool = True
    """Whether any row may have top-k or top-p, as far as the host knows."""

    def of_rows(self, rows: Sequence[int]) -> Draws:
        """The settings of those of `rows` that are drawn, as rows of scores of `rows` alone."""
        place_of = {row: place for place, row in enumerate(rows)}
        kept = [i for i, row in enumerate(self.rows.tolist()) if row in place_of]
        filters = Filters(*(values[kept] for values in self.filters))
        return replace(
            self,
            rows=torch.tensor(
                [place_of[row] for row in self.rows[kept].tolist()], dtype=torch.int64
            ),
            temperature=self.temperature[kept],
            filters=filters,
            streams=self.streams[kept],
        )


def draw_token(scores: Tensor, best: Tensor, draws: Draws) -> Tensor:
    """float32 scores [S, V] and the best token [S] of each -> the drawn tokens [n].

    If the best score of a row is not finite, its token is arbitrary.
    """
    if scores.is_cuda and scores.dtype is torch.float32 and scores.stride(-1) == 1:
        from baton.kernels.sampling.draw_token_gpu import draw_token as on_gpu

        return on_gpu(
            scores, draws.rows, best, draws.temperature, draws.filters, draws.streams,
            is_cut=draws.is_cut,
        )  # fmt: skip
    if operators.runs(scores) and scores.dtype is torch.float32 and scores.stride(-1) == 1:
        return cpu.draw_token(
            scores, draws.rows, best, draws.temperature, draws.filters, draws.streams
        )
    picked = scores[draws.rows]
    relative = relate(picked, draws.temperature)
    return draw_related(relative, draws.filters, draws.streams)


def relate(scores: Tensor, temperature: Tensor) -> Tensor:
    """[n, V] relative to the best score, which becomes 0, divided by the temperature."""
    return (scores - scores.amax(-1, keepdim=True)) / temperature.unsqueeze(-1)


def draw_related(scores: Tensor, filters: Filters, streams: Tensor) -> Tensor:
    """The tokens [n] drawn from scores [n, V] after temperature, in torch."""
    vocab_size = scores.shape[-1]
    if bool(((filters.top_k > 0) | (filters.top_p < 1) | (filters.min_p > LEAST_P)).any()):
        listed = shortlist(scores, filters)
        if listed.is_complete:
            best = listed.scores.masked_fill(listed.scores < listed.floor, -torch.inf)
            return _noisy_best(best, listed.tokens, streams)
        scores = scores.masked_fill(scores < listed.floor, -torch.inf)
    may_win = scores >= scores.amax(-1, keepdim=True) - SPREAD
    num_live = max(1, int(may_win.sum(-1).max()))
    if 4 * num_live >= vocab_size:
        return best_token(scores + gumbel_all(streams, vocab_size))
    return _noisy_best(*scores.topk(num_live, dim=-1), streams)


def probabilities(scores: Tensor, filters: Filters) -> Tensor:
    """The distribution [n, V] from which `draw_related` draws."""
    floor = shortlist(scores, filters).floor
    return scores.masked_fill(scores < floor, -torch.inf).softmax(-1)


def _noisy_best(scores: Tensor, tokens: Tensor, streams: Tensor) -> Tensor:
    """The token [n] with the largest sum of score and noise, among some tokens [n, m]."""
    winner = (scores + gumbel(streams, tokens)).argmax(-1, keepdim=True)
    return tokens.gather(-1, winner).squeeze(-1)
