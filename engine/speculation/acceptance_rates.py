"""How likely a drafted token is to be accepted, learnt from earlier drafted tokens.

    confidence of the drafter  x  acceptance rate of the request  ->  share of such that were right

Only tokens after accepted ones count, because nothing is known of the others. A rate that has not
been seen yet is given the share of all tokens of the same confidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from baton.engine.request.request import Request

NUM_CONFIDENCES, NUM_RATES = 8, 4
PRIOR = 4.0
"""Tokens that the first guess of a share weighs as many as."""
MEMORY = 200.0
"""Tokens that a share is of, at most: what was longer ago has faded."""
FADING = 0.85
"""Factor by which a request's acceptance rate fades with each of its drafts."""
NEW = 0.6
"""The acceptance rate of a request that had no draft verified yet."""


@dataclass(slots=True)
class _Share:
    num_right: float = 0.0
    num: float = 0.0

    def add(self, is_right: bool) -> None:
        self.num_right += is_right
        self.num += 1.0
        if self.num > MEMORY:
            self.num_right *= MEMORY / self.num
            self.num = MEMORY


class AcceptanceRates:
    def __init__(self) -> None:
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget what came of drafts: they may have become better."""
        lines = [(number + 0.5) / NUM_CONFIDENCES for number in range(NUM_CONFIDENCES)]
        self._of_any = [_Share(PRIOR * line, PRIOR) for line in lines]
        self._of_rate = [[_Share() for _ in range(NUM_RATES)] for _ in lines]
        self._rate_by_request: dict[Request, float] = {}
        self.share = 0.5
        """Share of lately drafted tokens behind right ones that were right."""

    def of(self, request: Request, confidences: Sequence[float]) -> list[float]:
        """The probability of each token that it and all before it are right."""
        rate = self._place_of_rate(request)
        hopes, before, share, hope = [], None, 0.0, 1.0
        for confidence in confidences:
            if confidence != before:
                place = _place(confidence, NUM_CONFIDENCES)
                of_any, one = self._of_any[place], self._of_rate[place][rate]
                known = PRIOR * of_any.num_right / of_any.num
                share, before = (one.num_right + known) / (one.num + PRIOR), confidence
            hope *= share
            hopes.append(hope)
        return hopes

    def learn(self, request: Request, confidences: Sequence[float], num_right: int) -> None:
        """Learn that the first `num_right` of these drafted tokens were right."""
        was = self._rate_by_request.get(request, NEW)
        rate, before = _place(was, NUM_RATES), None
        for position, confidence in enumerate(confidences[: num_right + 1]):
            is_right = position < num_right
            if confidence != before:
                place, before = _place(confidence, NUM_CONFIDENCES), confidence
                of_any, one = self._of_any[place], self._of_rate[place][rate]
            of_any.add(is_right)
            one.add(is_right)
            self.share += (is_right - self.share) / 64
        self._rate_by_request[request] = FADING * was + (1 - FADING) * (
            num_right / len(confidences)
        )

    def forget(self, request: Request) -> None:
        self._rate_by_request.pop(request, None)

    def _place_of_rate(self, request: Request) -> int:
        return _place(self._rate_by_request.get(request, NEW), NUM_RATES)


def _place(share: float, num_places: int) -> int:
    return min(num_places - 1, int(share * num_places))
