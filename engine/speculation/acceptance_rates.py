"""Estimates how likely a draft token is to be accepted, from what became of earlier draft tokens.

    drafter's confidence  x  request's acceptance rate  ->  share of such tokens that were accepted

Both inputs are divided into a few ranges, which gives a table of shares. Only draft tokens whose
predecessors were all accepted are counted, because the others were not tested. A table entry
without data starts from the share of all tokens of the same confidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from baton.engine.request.request import Request

NUM_CONFIDENCES, NUM_RATES = 8, 4
PRIOR = 4.0
"""Weight of a share's initial guess, in tokens."""
MEMORY = 200.0
"""Most tokens that a share counts; older tokens fade out."""
FADING = 0.85
"""Weight of a request's earlier acceptance rate in its moving average, per draft."""
NEW = 0.6
"""Assumed acceptance rate of a request without a verified draft."""


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
    """Belongs to the engine's thread."""

    def __init__(self) -> None:
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget all outcomes, because drafts may have become better since."""
        lines = [(number + 0.5) / NUM_CONFIDENCES for number in range(NUM_CONFIDENCES)]
        self._of_any = [_Share(PRIOR * line, PRIOR) for line in lines]
        self._of_rate = [[_Share() for _ in range(NUM_RATES)] for _ in lines]
        self._rate_by_request: dict[Request, float] = {}
        self.share = 0.5
        """Share of accepted tokens among recent draft tokens whose predecessors were accepted."""

    def of(self, request: Request, confidences: Sequence[float]) -> list[float]:
        """The estimated probability, for each draft token, that it and all before it are accepted.
        `confidences` are the drafter's, one per token."""
        rate = self._place_of_rate(request)
        probabilities, before, share, probability = [], None, 0.0, 1.0
        for confidence in confidences:
            if confidence != before:
                place = _place(confidence, NUM_CONFIDENCES)
                of_any, one = self._of_any[place], self._of_rate[place][rate]
                known = PRIOR * of_any.num_right / of_any.num
                share, before = (one.num_right + known) / (one.num + PRIOR), confidence
            probability *= share
            probabilities.append(probability)
        return probabilities

    def learn(self, request: Request, confidences: Sequence[float], num_right: int) -> None:
        """Learn that of a draft with these confidences the first `num_right` tokens were
        accepted."""
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
