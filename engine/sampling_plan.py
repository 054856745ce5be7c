"""What a batch of rows wants to have done, worked out once for as long as the same rows stay.

S rows, n of them drawn with noise, V vocabulary.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from baton.core.messages import SamplingParams
from baton.engine.sampling_row import SamplingRow
from baton.kernels.draw_token import LEAST_P, Draws
from baton.kernels.token_filter import Filters
from baton.kernels.token_penalties import Penalties

WORD = 0xFFFFFFFF
MIN_TEMPERATURE = 1e-30
"""Below it float32 would divide by zero."""


class SamplingPlan:
    """The groups are of row numbers, in order; a row may be in several."""

    def __init__(self, rows: Sequence[SamplingRow], device: torch.device | str) -> None:
        self.rows = rows
        self.device = torch.device(device)
        self.penalised: list[int] = []
        self.biased: list[int] = []
        self.ruled: list[int] = []
        self.drawn: list[int] = []
        self.typical: list[int] = []
        """Of those drawn."""
        self.asked: list[int] = []
        """Their logprobs are wanted."""
        for number, row in enumerate(rows):
            if not row.is_plain:
                self._place(number, row)
        drawn = [rows[i] for i in self.drawn]
        self._streams = array("q", [word for row in drawn for word in _stream(row)])
        self.penalties = self._penalties() if self.penalised else None
        self._draws = self._make_draws(drawn) if drawn else None

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

    def draws(self) -> Draws | None:
        """How those drawn are drawn now; None if all rows take their best token."""
        if self._draws is None:
            return None
        rows = self.rows
        positions = [len(rows[i].prompt) + len(rows[i].output) for i in self.drawn]
        memoryview(self._streams)[2::4] = array("q", positions)
        streams = torch.frombuffer(self._streams, dtype=torch.int64).view(-1, 4)
        return Draws(
            rows=self._draws.rows,
            temperature=self._draws.temperature,
            filters=self._draws.filters,
            streams=streams.to(self.device),
        )

    def _penalties(self) -> Penalties:
        """Of all rows, so that they can be found by the row."""
        return Penalties(
            repetition=self._column(self.rows, lambda p: float(p.repetition_penalty)),
            presence=self._column(self.rows, lambda p: float(p.presence_penalty)),
            frequency=self._column(self.rows, lambda p: float(p.frequency_penalty)),
        )

    def _make_draws(self, drawn: Sequence[SamplingRow]) -> Draws:
        return Draws(
            rows=torch.tensor(self.drawn, device=self.device),
            temperature=self._column(drawn, lambda p: max(p.temperature, MIN_TEMPERATURE)),
            filters=Filters(
                top_k=self._column(drawn, lambda p: p.top_k),
                top_p=self._column(drawn, lambda p: float(p.top_p)),
                min_p=self._column(drawn, lambda p: max(float(p.min_p), LEAST_P)),
            ),
            streams=torch.empty(0, 4, dtype=torch.int64),
        )

    def _column(
        self, rows: Sequence[SamplingRow], value: Callable[[SamplingParams], float]
    ) -> Tensor:
        """One parameter of each row: float32 if the values are floats, int64 if integers."""
        return torch.tensor([value(row.params) for row in rows], device=self.device)


def _stream(row: SamplingRow) -> tuple[int, int, int, int]:
    """See `baton.kernels.gumbel`; the position, the third, moves on."""
    seed = row.params.seed
    return seed & WORD, (seed >> 32) & WORD, 0, row.params.choice & WORD
