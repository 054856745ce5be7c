"""What drafts gain, given what earlier steps and drafting took: tokens a second, relative to plain
decoding.

    depth    tokens a request to draft, where each takes time     0.6 of them right -> 2
    rows     how many of the likeliest drafted tokens to verify   0.9 0.9 0.8 0.1   -> 3
    stake    the most that could be gained                        1.2 times plain   -> 0.2
    balance  what one step has gained or lost

rate = (running + hoped for) / running / steps without that it takes. Beside prompts, whose passes
are bound by arithmetic, each row costs what a token of a prompt does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median_low

from baton.engine.request.step_report import StepReport
from baton.engine.speculation.pause import Balance
from baton.engine.speculation.step_prices import StepPrices

MIN_GAIN = 1.03
"""Times the tokens a second without drafts that they must promise."""
MAX_STALL, MAX_DRAFTING = 3.0, 32.0
"""A step, and drafting in it, that takes more times what a step without drafts does counts as if it
took so many."""

NUM_TIMES = 15
"""Drafts that the time of one depth is the median of."""


class DraftPrices:
    """What it takes to draft so many tokens for all who ask, measured as it is done.

    token by token     1: 0.7 ms   2: 1.1 ms     between them a line, and behind them, too
    all at once        8: 0.9 ms                 so 4 take as long, and 16, until they were tried
    """

    def __init__(self, *, at_once: bool = False) -> None:
        """`at_once`: deeper drafts are thought to take no longer than those that were tried."""
        self._at_once = at_once
        self._times: dict[int, deque[float]] = {}
        """Measured seconds of drafts, by depth."""

    def add(self, depth: int, seconds: float) -> None:
        self._times.setdefault(depth, deque(maxlen=NUM_TIMES)).append(seconds)

    def forget(self) -> None:
        self._times.clear()

    def seconds(self, depth: int) -> float:
        """Seconds of a draft of `depth` tokens; 0 before the first."""
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
        """Seconds of a token more, behind all that were tried."""
        last, last_s = points[-1]
        if len(points) == 1:
            return 0.0 if self._at_once else last_s / last
        before, before_s = points[-2]
        return min(max(0.0, last_s - before_s) / (last - before), last_s / last)


class Payoff:
    def __init__(self, max_tokens: int, *, at_once: bool) -> None:
        """`at_once`: all tokens of a draft, `max_tokens` at most, are made in one pass."""
        self.steps = StepPrices()
        self.drafts = DraftPrices(at_once=at_once)
        self.is_beside_prompts = False
        """The last step computed prompts, too."""
        self._max_tokens = max_tokens
        self._at_once = at_once

    def forget(self) -> None:
        """What drafting and drafts cost shall be learnt anew."""
        self.steps.forget_drafted()
        self.drafts.forget()

    def best_depth(self, num_running: int, num_asking: int, share: float) -> int:
        """Tokens to draft for each who asks if `share` of them are right; 0 if none pays."""
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

    def best_rows(self, num_running: int, hopes: Sequence[float]) -> int:
        """How many of the drafted tokens to verify, by how likely each is to survive, the most
        hopeful first; 0 if none pays."""
        tried = self.steps.max_tried(num_running)
        most = min(len(hopes), max(2, num_running, 2 * tried))  # not at once what none was like
        best, best_rate = 0, MIN_GAIN
        gain, num = 0.0, 0
        while num < most:
            stop = min(most, num + max(1, num // 4))
            gain += sum(hopes[num:stop])
            num = stop
            rate = (1 + gain / num_running) / self._ratio(num_running, num)
            if rate > best_rate:
                best, best_rate = num, rate
        return best

    def stake(self, num_running: int, hope: float, *, is_free: bool = False) -> float:
        """What it would win to draft all that may be, were `hope` of it right, in shares of the
        time of a step without; less than 0: not even that would pay. `is_free`: if to draft took no
        time, which may change sooner than what rows take."""
        plain_s = None if is_free else self.steps.plain_s(num_running)
        best = gain = 0.0
        for depth in range(1, self._max_tokens + 1):
            gain += hope**depth
            ratio = self._ratio(num_running, depth * num_running)
            if plain_s is not None:
                ratio += self.drafts.seconds(depth) / plain_s
            best = max(best, (1 + gain) / ratio)
        return best - 1

    def balance(
        self, report: StepReport, seconds: float, *, was_plain: bool, is_refused: bool
    ) -> Balance | None:
        """What the drafts of a step came to that took so many seconds, without those of reading
        prompts; None if it is not known what steps take without drafts. `was_plain`: the one before
        had none."""
        num_decoding = report.num_running if is_mixed(report) else report.num_requests
        plain_s = self.steps.plain_s(num_decoding) if num_decoding else None
        if plain_s is None:
            return None
        draft_s = report.draft_ms / 1e3
        lost_s = min(draft_s, MAX_DRAFTING * plain_s)
        if is_mixed(report):
            lost_s += (seconds - draft_s) * report.num_drafted / num_rows(report)
        elif report.num_drafted or not was_plain:  # to plan anew behind drafts takes time, too
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
        """What the next step takes with drafts, in steps without."""
        if self.is_beside_prompts:
            row_s, plain_s = self.steps.row_s, self.steps.plain_s(num_running)
            if row_s is not None and plain_s is not None:
                return 1 + num_drafted * row_s / plain_s
        return self.steps.ratio(num_running, num_drafted)


def is_mixed(report: StepReport) -> bool:
    """There are prompts in it."""
    return report.num_tokens > report.num_requests


def num_rows(report: StepReport) -> int:
    return report.num_tokens + report.num_drafted
