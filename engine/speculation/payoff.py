"""Estimates the speedup of drafts over plain decoding from the measured times of steps and of
drafting.

    depth          tokens to draft per request, where each costs time  0.6 of them accepted   -> 2
    rows           how many of the likeliest draft tokens to verify    0.9 0.9 0.8 0.1        -> 3
    possible gain  the most that could be gained                       1.2 times as fast      -> 0.2
    balance        what one step has gained or lost, in seconds

    speedup = (running + expected accepted) / running / (time of the step / time of a plain step)

A pass that also computes prompts is bound by arithmetic, so there each draft token costs as much as
a prompt token.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median_low

from baton.engine.request.step_report import StepReport
from baton.engine.speculation.pause import Balance
from baton.engine.speculation.step_prices import StepPrices

MIN_GAIN = 1.03
"""Least expected speedup with which drafts are made."""
MAX_STALL, MAX_DRAFTING = 3.0, 32.0
"""Limits on the time of a step, and of drafting in it, in times of a plain step. Longer times count
as this much, so that a stall does not count as a loss."""

NUM_TIMES = 15
"""Number of recent drafts of one depth whose median time counts."""


class DraftPrices:
    """Measured time of drafting by depth, the number of tokens per request.

    token by token     1: 0.7 ms   2: 1.1 ms     linear in between and beyond
    all at once        8: 0.9 ms                 the same for 4 and for 16, until they are measured
    """

    def __init__(self, *, at_once: bool = False) -> None:
        """`at_once`: assume that deeper drafts take no longer than the measured ones."""
        self._at_once = at_once
        self._times: dict[int, deque[float]] = {}
        """Recent seconds of drafting, by depth."""

    def add(self, depth: int, seconds: float) -> None:
        self._times.setdefault(depth, deque(maxlen=NUM_TIMES)).append(seconds)

    def forget(self) -> None:
        self._times.clear()

    def seconds(self, depth: int) -> float:
        """Expected seconds of drafting to `depth`; 0 before the first measurement."""
        points = [(tried, median_low(self._times[tried])) for tried in sorted(self._times)]
        if not points:
            return 0.0
        below = [point for point in points if point[0] <= depth]
        above = [point for point in points if point[0] > depth]
        if above:
            first = (0, above[0][1] if self._at_once else 0.0)
            (start, start_s), (end, end_s) = below[-1] if below else first, above[0]
            return start_s + (end_s - start_s) * (depth - start) / (end - start)
        (last, last_s) = below[-1]
        return last_s + self._slope(below) * (depth - last)

    def _slope(self, points: list[tuple[int, float]]) -> float:
        """Seconds per additional token beyond the deepest measured draft."""
        last, last_s = points[-1]
        if len(points) == 1:
            return 0.0 if self._at_once else last_s / last
        before, before_s = points[-2]
        return min(max(0.0, last_s - before_s) / (last - before), last_s / last)


class Payoff:
    """Chooses depths and numbers of verified tokens by their expected speedup."""

    def __init__(self, max_tokens: int, *, at_once: bool) -> None:
        """`max_tokens`: most draft tokens per request. `at_once`: a draft takes one pass."""
        self.steps = StepPrices()
        self.drafts = DraftPrices(at_once=at_once)
        self.is_mixed = False
        """Whether the last step computed prompts, too."""
        self._max_tokens = max_tokens
        self._at_once = at_once

    def forget(self) -> None:
        """Forget the measured times of drafting and of steps with drafts."""
        self.steps.forget_drafted()
        self.drafts.forget()

    def best_depth(self, num_running: int, num_asking: int, share: float) -> int:
        """Number of tokens to draft for each of `num_asking` requests if `share` of draft tokens
        are accepted; 0 if no number pays."""
        plain_s = self.steps.plain_s(num_running)
        if plain_s is None:
            return self._max_tokens
        num_tried = self.steps.max_tried(num_running) // num_asking
        deepest = self._max_tokens if self._at_once else max(1, 2 * num_tried)
        best, best_rate, gain = 0, MIN_GAIN, 0.0
        for depth in range(1, min(self._max_tokens, deepest) + 1):
            gain += share**depth * num_asking / num_running
            ratio = self._ratio(num_running, depth * num_asking)
            rate = (1 + gain) / (ratio + self.drafts.seconds(depth) / plain_s)
            if rate > best_rate:
                best, best_rate = depth, rate
        return best

    def best_rows(self, num_running: int, probabilities: Sequence[float]) -> int:
        """How many of the draft tokens to verify; 0 if no number pays. `probabilities`: of each
        that it is accepted, the likeliest first."""
        tried = self.steps.max_tried(num_running)
        # Far more rows than were ever measured are not tried at once.
        most = min(len(probabilities), max(2, num_running, 2 * tried))
        best, best_rate = 0, MIN_GAIN
        gain, num = 0.0, 0
        while num < most:
            stop = min(most, num + max(1, num // 4))
            gain += sum(probabilities[num:stop])
            num = stop
            rate = (1 + gain / num_running) / self._ratio(num_running, num)
            if rate > best_rate:
                best, best_rate = num, rate
        return best

    def possible_gain(self, num_running: int, share: float, *, is_free: bool = False) -> float:
        """The most that drafting could gain if `share` of draft tokens were accepted: the
        best speedup of all depths, minus 1. Negative if no depth pays. `is_free`: leave out the
        time of drafting, which may change sooner than that of verification."""
        plain_s = None if is_free else self.steps.plain_s(num_running)
        best = gain = 0.0
        for depth in range(1, self._max_tokens + 1):
            gain += share**depth
            ratio = self._ratio(num_running, depth * num_running)
            if plain_s is not None:
                ratio += self.drafts.seconds(depth) / plain_s
            best = max(best, (1 + gain) / ratio)
        return best - 1

    def balance(
        self, report: StepReport, seconds: float, *, was_plain: bool, is_refused: bool
    ) -> Balance | None:
        """What drafting gained or lost in a step of `seconds`, without the time in which the
        drafter read kept features. None while the time of a plain step is not known. `was_plain`:
        the step before had no drafts."""
        num_decoding = report.num_running if is_mixed(report) else report.num_requests
        plain_s = self.steps.plain_s(num_decoding) if num_decoding else None
        if plain_s is None:
            return None
        draft_s = report.draft_ms / 1e3
        lost_s = min(draft_s, MAX_DRAFTING * plain_s)
        if is_mixed(report):
            lost_s += (seconds - draft_s) * report.num_drafted / num_rows(report)
        elif report.num_drafted or not was_plain:  # planning anew after drafts takes time, too
            lost_s += min(seconds - draft_s, MAX_STALL * plain_s) - plain_s
        return Balance(
            saved_s=plain_s * report.num_accepted / num_decoding - lost_s,
            spent_s=seconds,
            plain_s=plain_s,
            num_running=num_decoding,
            num_verified=report.num_drafted,
            is_refused=is_refused,
        )

    def _ratio(self, num_running: int, num_drafted: int) -> float:
        """Expected time of the next step with `num_drafted` draft tokens, in times of a plain
        step."""
        if self.is_mixed:
            row_s, plain_s = self.steps.row_s, self.steps.plain_s(num_running)
            if row_s is not None and plain_s is not None:
                return 1 + num_drafted * row_s / plain_s
        return self.steps.ratio(num_running, num_drafted)


def is_mixed(report: StepReport) -> bool:
    """Whether the step computed prompts, too."""
    return report.num_tokens > report.num_requests


def num_rows(report: StepReport) -> int:
    """Number of tokens that the step's pass computed, draft tokens included."""
    return report.num_tokens + report.num_drafted
