"""Service level objectives: when a request's first token is due, and how far apart the others are.

    class, or the request's own --> Slo --> due_s     by when the first token is to be there
                                            latest start = due_s - work; slack = latest start - now

In line the request with the least slack goes first, within bounds (`turns.py`). A replica that is
predicted to be late costs more, by the overrun and, from a quarter of the allowed time on, by all
of that time: a token that comes too late is of little use.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TypeVar

import numpy as np

from baton.router.table.columns import Numbers

STEEPNESS = 4.0
"""An overrun of a quarter is charged the whole allowed time: predictions are no more exact."""
UNHURRIED_S = 10.0
"""In the queue for a place, where nothing is known of its work, a request without an objective lets
those pass that are due so much earlier."""
MOST_LATER_S = 100.0
"""By how much later requests may pass one at most, whatever its objective allows."""
LITTLE = 0.1
"""A late prompt that takes no more than this share of a typical one does not go last: it costs the
others little."""


N = TypeVar("N", float, Numbers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    name: str = ""
    """The class; empty: what the request asks for itself, if anything."""
    ttft_s: float | None = None
    """Seconds to the first token."""
    itl_s: float | None = None
    """Mean seconds from one output token to the next."""

    @property
    def is_given(self) -> bool:
        return self.ttft_s is not None or self.itl_s is not None

    @property
    def due_in_s(self) -> float:
        """Seconds until the first token is due, to order requests by."""
        return UNHURRIED_S if self.ttft_s is None else min(self.ttft_s, MOST_LATER_S)

    @property
    def allowed_itl_s(self) -> float:
        """Infinite: any."""
        return inf if self.itl_s is None else self.itl_s

    def due_s(self, asked_s: float) -> float:
        """When the first token is due, of one that was asked for then; infinite: it is not."""
        return inf if self.ttft_s is None else asked_s + self.ttft_s

    def outcome(self, ttft_s: float | None, itl_s: float | None) -> str:
        """`met`, or what was missed: `ttft`, `itl`; `none`: no token came."""
        if ttft_s is None:
            return "none"
        if self.ttft_s is not None and ttft_s > self.ttft_s:
            return "ttft"
        if self.itl_s is not None and itl_s is not None and itl_s > self.itl_s:
            return "itl"
        return "met"


NO_SLO = Slo()


class ObjectiveOutcome:
    """Whether one request keeps its objective, over all its attempts."""

    def __init__(self, slo: Slo, asked_s: float) -> None:
        self.slo = slo
        self.due_s = slo.due_s(asked_s)
        self._asked_s = asked_s
        self._first_s: float | None = None
        self._last_s = 0.0
        self._num_after = 0

    def deliver(self, num_tokens: int, now: float) -> None:
        """Note that `num_tokens` more tokens were delivered."""
        if self._first_s is None:
            self._first_s = now
        else:
            self._num_after += num_tokens
        self._last_s = now

    @property
    def outcome(self) -> str:
        """The present result of `Slo.outcome`."""
        if self._first_s is None:
            return self.slo.outcome(None, None)
        itl_s = (self._last_s - self._first_s) / self._num_after if self._num_after else None
        return self.slo.outcome(self._first_s - self._asked_s, itl_s)


def late_cost_s(over_s: N, allowed_s: float) -> N:
    """The cost of being late by `over_s` >= 0, if `allowed_s` were allowed."""
    cost_s: N = over_s + np.minimum(STEEPNESS * over_s, allowed_s)
    return cost_s


def start_offset_s(due_in_s: float, waited_s: float, work_s: N, last_s: N) -> N:
    """How long after its arrival a request with an objective is due in line: when it must begin,
    but after `last_s` if it is late by now. `due_in_s`: by when its first token is due, after its
    arrival."""
    start_in_s = due_in_s - work_s
    late_s = np.maximum(start_in_s, last_s)
    offset_s = np.where(start_in_s < waited_s, late_s, start_in_s)
    found: N = np.minimum(offset_s, MOST_LATER_S)  # type: ignore[assignment]
    return found


def last_offset_s(usual_s: N, most_s: float, latest_s: N) -> N:
    """How long after its arrival a late one is due: after all that are not, `latest_s`, or if it is
    short as without an objective, `usual_s`. `most_s`: the most of that, but for the line."""
    found: N = np.where(usual_s <= LITTLE * most_s, usual_s, latest_s)  # type: ignore[assignment]
    return found
