"""The sampling work of a batch, planned once and used while its rows stay the same.

    raw logits -> penalties -> bias -> what may not be drawn -> scores -> temperature
               -> top-k -> typical-p -> top-p -> min-p -> tokens

The draw takes the largest of score plus Gumbel noise; the noise is a function of (seed, choice,
position, token), so the same scores give the same token in any batch, on any replica. Rows of
temperature 0 take the largest score before temperature, without noise.

What changes from draw to draw (positions of noise, tokens seen) is on the device and is updated
there: a draw does not wait until the host has read the one before, unless a row `needs_host`.

S rows, n of them drawn with noise, V vocabulary.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from baton.core.sampling import SamplingParams
from baton.engine.sampling.acceptance import DRAFTING, are_kept, left_of, redrawn
from baton.engine.sampling.allowed_tokens import forbid_tokens
from baton.engine.sampling.sampling_row import SamplingRow
from baton.engine.sampling.seen_tokens import SeenTokens, seen_tokens
from baton.kernels.gpu.upload import uploaded
from baton.kernels.sampling.draw_token import (
    LEAST_P,
    Draws,
    draw_related,
    draw_token,
    probabilities,
    relate,
)
from baton.kernels.sampling.token_filter import Filters, shortlist
from baton.kernels.sampling.token_penalties import Penalties, penalise
from baton.kernels.sampling.typical import keep_typical

WORD = 0xFFFFFFFF
STRETCH_BYTES = 32 << 20
"""Bytes of scores of the rows whose probabilities are computed at once, for speculative
sampling."""
NOTHING: Mapping[int, Tensor] = MappingProxyType({})
MIN_TEMPERATURE = 1e-30
"""Below it float32 would divide by zero."""


class Bias(NamedTuple):
    """Values added to some scores, one entry per score."""

    rows: Tensor
    tokens: Tensor
    shifts: Tensor  # float32


class SamplingPlan:
    """The groups (`penalised`, `drawn` and so on) hold row numbers, in order; a row may be in
    several."""

    def __init__(
        self,
        rows: Sequence[SamplingRow],
        device: torch.device | str,
        drafted: Sequence[int | None] = (),
        *,
        drawn_from: Mapping[int, Tensor] = NOTHING,
        has_own_noise: bool = False,
    ) -> None:
        """`drafted`: each row's draft token for the published rule, or None. `drawn_from`: by row,
        the distribution q [V] of a draft token that was drawn. `has_own_noise`: draw with noise
        that is independent of the model's."""
        self.rows = rows
        self.device = torch.device(device)
        self._has_own_noise = has_own_noise
        self.penalised: list[int] = []
        self.biased: list[int] = []
        self.ruled: list[int] = []
        self.drawn: list[int] = []
        self.typical: list[int] = []
        """Rows of `drawn` with typical-p."""
        self.asked: list[int] = []
        """Rows that ask for logprobs."""
        for number, row in enumerate(rows):
            if not row.is_plain:
                self._place(number, row)
        self.is_plain = all([row.is_plain for row in rows])
        """Whether each row takes its best token, without logprobs."""
        self.penalties = self._penalties() if self.penalised else None
        self._seen = self._count_seen() if self.penalised else None
        self._draws = self._make_draws([rows[i] for i in self.drawn]) if self.drawn else None
        self._drafted = {i: token for i, token in enumerate(drafted) if token is not None}
        """Drafted token of each row that has one."""
        self._drawn_from = drawn_from
        self._run_ends = [i for i, token in enumerate(drafted) if token is None]
        self._bias: Bias | None = None
        self._last: Tensor | None = None
        """The tokens drawn last, [S], if the next draw continues from them."""

    @property
    def needs_host(self) -> bool:
        """Whether a row's draw or logprobs depend on its output in a way that only the host
        knows."""
        return bool(self.ruled or self.typical or self.asked)

    def next_draw(self) -> None:
        """Advance by the tokens that were drawn last, if any."""
        last, self._last = self._last, None
        if last is None:
            return
        if self._draws is not None:
            self._draws.streams[:, 2] += 1
        if self._seen is not None:
            self._seen.add(last[self._seen.rows])

    def next_draws(self) -> Draws | None:
        """The next draw of the rows that draw with noise, if that and best tokens are all that the
        rows ask for: no row has penalties, rules, logprobs, a draft or typical-p."""
        if self._draws is None or self._has_more_than_draws:
            return None
        self.next_draw()
        return self._draws

    @property
    def _has_more_than_draws(self) -> bool:
        groups = (self.penalised, self.biased, self.ruled, self.typical, self.asked, self._drafted)
        return any(groups)

    def drew(self, tokens: Tensor) -> None:
        """Note the drawn tokens [S]; the next draw draws those after them."""
        self._last = tokens

    def _place(self, number: int, row: SamplingRow) -> None:
        params = row.params
        for group, holds in (
            (self.penalised, row.has_penalties),
            (self.biased, params.logit_bias),
            (self.ruled, row.has_rules),
            (self.drawn, params.temperature > 0),
            (self.typical, params.temperature > 0 and params.typical_p < 1),
            (self.asked, params.num_logprobs is not None),
        ):
            if holds:
                group.append(number)

    def scores(self, logits: Tensor, eos_token_ids: Collection[int]) -> Tensor:
        """The scores before temperature of logits [S, V]; the logits themselves if nothing changes
        them."""
        scores = logits
        if self.penalties is not None and self._seen is not None:
            scores = penalise(scores, self.penalties, self._seen.occurrences())
        bias = self._bias_of(logits.shape[-1])
        if bias is not None:  # only adds to scores: -100 makes a token unlikely, not impossible
            scores = scores.index_put((bias.rows, bias.tokens), bias.shifts, accumulate=True)
        if self.ruled:
            scores = forbid_tokens(scores, self.rows, eos_token_ids)
        return scores

    def tokens(self, scores: Tensor, best: Tensor) -> Tensor:
        """The token of each row, [S]. `best` [S] holds each row's token with the largest score."""
        draws = self._draws
        if draws is None:
            return best
        tokens = draw_token(scores, best, draws)
        if self.typical:
            at = [self.drawn.index(row) for row in self.typical]
            related = self._related_typical(scores, draws, at)
            filters = Filters(*(values[at] for values in draws.filters))
            tokens[at] = draw_related(related, filters, draws.streams[at])
        if self._drafted:
            tokens = self._kept(scores, draws, tokens)
        return best.index_copy(0, draws.rows, tokens)

    def _related_typical(self, scores: Tensor, draws: Draws, at: Sequence[int]) -> Tensor:
        """Scores of some of the drawn rows. Typical-p considers only the tokens that top-k
        leaves."""
        filters = Filters(*(values[at] for values in draws.filters))
        relative = relate(scores[draws.rows[at]], draws.temperature[at])
        if bool(filters.top_k.any()):
            ones = torch.ones_like(filters.top_p)
            floor = shortlist(relative, Filters(filters.top_k, ones, 1 - ones)).floor
            relative = relative.masked_fill(relative < floor, -torch.inf)
        typical_p = self._column(
            [self.rows[self.drawn[place]] for place in at], lambda p: float(p.typical_p)
        )
        return keep_typical(relative, typical_p)

    def _kept(self, scores: Tensor, draws: Draws, tokens: Tensor) -> Tensor:
        """`tokens`, with the drafted token or its replacement in rows with a draft. A drafted token
        that was not drawn has q = 1."""
        stretch = _stretch(scores)
        left = [place for place, row in enumerate(self.drawn) if row in self._drafted]
        while left:
            at, left = left[:stretch], left[stretch:]
            p = self._probabilities(scores, draws, at)
            drafted = self._uploaded([self._drafted[self.drawn[place]] for place in at])
            chosen, streams = drafted.unsqueeze(-1), draws.streams[at]
            q = self._q_of(at, p, chosen)
            p_of_chosen, q_of_chosen = (each.gather(-1, chosen).squeeze(-1) for each in (p, q))
            is_kept = are_kept(p_of_chosen, q_of_chosen, drafted, streams)
            tokens[at] = drafted
            rejected = self._first_rejected(at, is_kept.tolist())
            if rejected:
                left_over = left_of(p[rejected], q[rejected])
                tokens[[at[i] for i in rejected]] = redrawn(left_over, streams[rejected])
                ended = {self._run(at[i]) for i in rejected}
                left = [place for place in left if self._run(place) not in ended]
        return tokens

    def _q_of(self, at: Sequence[int], p: Tensor, chosen: Tensor) -> Tensor:
        """The distributions [n, V] that the drafted tokens [n, 1] were drawn from; 1 for a token
        that was not drawn."""
        q = torch.zeros_like(p).scatter_(-1, chosen, 1.0)
        for i, place in enumerate(at):
            if (drawn_from := self._drawn_from.get(self.drawn[place])) is not None:
                q[i] = drawn_from
        return q

    def chances(self, scores: Tensor) -> Tensor:
        """The distributions [n, V] from which the rows of `drawn` are drawn."""
        draws, stretch = self._draws, _stretch(scores)
        assert draws is not None
        places = range(len(self.drawn))
        chances = scores.new_empty((len(places), scores.shape[-1]))
        for first in places[::stretch]:
            at = places[first : first + stretch]
            chances[first : first + stretch] = self._probabilities(scores, draws, at)
        return chances

    def _probabilities(self, scores: Tensor, draws: Draws, at: Sequence[int]) -> Tensor:
        """The distributions [n, V] of some of the drawn rows."""
        relative = relate(scores[draws.rows[at]], draws.temperature[at])
        typical = [place for place in at if self.drawn[place] in set(self.typical)]
        if typical:
            places = [at.index(place) for place in typical]
            relative[places] = self._related_typical(scores, draws, typical)
        return probabilities(relative, Filters(*(values[at] for values in draws.filters)))

    def _first_rejected(self, at: Sequence[int], is_kept: Sequence[bool]) -> list[int]:
        """The first row of each run of drafts whose token is not kept; the rows after it are not
        needed."""
        first_by_run: dict[int, int] = {}
        for i, place in enumerate(at):
            if not is_kept[i]:
                first_by_run.setdefault(self._run(place), i)
        return list(first_by_run.values())

    def _run(self, place: int) -> int:
        """The run of the drawn row at `place`: consecutive drafts and the row after them, all of
        one request."""
        return bisect_left(self._run_ends, self.drawn[place])

    def _bias_of(self, vocab_size: int) -> Bias | None:
        """None if no token of the vocabulary has a bias."""
        if self._bias is None and self.biased:
            self._bias = self._make_bias(vocab_size)
        return self._bias

    def _make_bias(self, vocab_size: int) -> Bias | None:
        entries = [
            (i, token, bias)
            for i in self.biased
            for token, bias in self.rows[i].params.logit_bias
            if 0 <= token < vocab_size
        ]
        if not entries:
            return None
        rows, tokens, shifts = zip(*entries, strict=True)
        return Bias(
            rows=self._uploaded(rows),
            tokens=self._uploaded(tokens),
            shifts=self._uploaded([float(shift) for shift in shifts]),
        )

    def _count_seen(self) -> SeenTokens:
        counts = [self.rows[i].counts() for i in self.penalised]
        return seen_tokens(self.penalised, counts, self.device)

    def _penalties(self) -> Penalties:
        """The penalties of all rows, indexed by row."""
        return Penalties(
            repetition=self._column(self.rows, lambda p: float(p.repetition_penalty)),
            presence=self._column(self.rows, lambda p: float(p.presence_penalty)),
            frequency=self._column(self.rows, lambda p: float(p.frequency_penalty)),
        )

    def _make_draws(self, drawn: Sequence[SamplingRow]) -> Draws:
        return Draws(
            rows=self._uploaded(self.drawn),
            temperature=self._column(drawn, lambda p: max(p.temperature, MIN_TEMPERATURE)),
            filters=Filters(
                top_k=self._column(drawn, lambda p: p.top_k),
                top_p=self._column(drawn, lambda p: float(p.top_p)),
                min_p=self._column(drawn, lambda p: max(float(p.min_p), LEAST_P)),
            ),
            streams=self._uploaded([self._stream(row) for row in drawn]),
            is_cut=any(row.params.top_k > 0 or row.params.top_p < 1 for row in drawn),
        )

    def _stream(self, row: SamplingRow) -> tuple[int, int, int, int]:
        """See `baton.kernels.sampling.gumbel`; the third column, the position, advances."""
        seed, position = row.params.seed, len(row.prompt) + len(row.output)
        choice = (row.params.choice & WORD) | (DRAFTING if self._has_own_noise else 0)
        return seed & WORD, (seed >> 32) & WORD, position, choice

    def _column(
        self, rows: Sequence[SamplingRow], value: Callable[[SamplingParams], float]
    ) -> Tensor:
        """One parameter of all rows: float32 for floats, int64 for integers."""
        return self._uploaded([value(row.params) for row in rows])

    def _uploaded(self, values: Sequence[object]) -> Tensor:
        """The values on the device: float32 for floats, int64 for integers."""
        return uploaded(torch.tensor(values), self.device)


def _stretch(scores: Tensor) -> int:
    """The number of rows whose scores fit into `STRETCH_BYTES`."""
    return max(1, STRETCH_BYTES // (scores.shape[-1] * scores.element_size()))
