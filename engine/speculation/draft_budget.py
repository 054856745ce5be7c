"""How much to draft: as much as pays, by what steps with so many drafts took before.

    begins     whether to draft in this step
    depth      tokens a request to ask the drafter for
    num_rows   of all it drafted, the most hopeful that the pass is to verify
    learn      what the step took

What is the most: tokens a second, (running + hoped for) / seconds, over the number of rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Protocol

from baton.engine.request.step_report import StepReport
from baton.engine.speculation.pause import Pause
from baton.engine.speculation.step_prices import StepPrices

MIN_GAIN = 1.03
"""Times the tokens a second without drafts that they must promise."""
PLAIN_EVERY, NUM_PLAIN = 128, 2
"""After so many steps with drafts come so many without: what those take is to stay known."""
NUM_TIMES = 15
"""Steps that the time of drafting is the median of."""


class DraftBudget(Protocol):
    @property
    def is_paused(self) -> bool:
        """Nothing is drafted for many steps."""

    @property
    def num_pauses(self) -> int:
        """The pauses so far."""

    def begins(self, num_running: int) -> bool:
        """Whether to draft for the next step; asked once each."""

    def depth(self, num_running: int, num_asking: int, share: float | None) -> int:
        """Tokens to draft for each who asks, of those who run.

        `share`: of drafted tokens those that are right, if drafting more takes longer.
        """

    def num_rows(self, num_running: int, hopes: Sequence[float]) -> int:
        """How many of the drafted tokens to verify; `hopes`: how likely each is to survive, the
        most hopeful first."""

    def learn(self, report: StepReport, seconds: float) -> None:
        """A step is over for which `begins` was asked."""


class FixedBudget:
    """Always all: for tests, and to see what a method does."""

    is_paused = False
    num_pauses = 0

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens

    def begins(self, num_running: int) -> bool:
        return True

    def depth(self, num_running: int, num_asking: int, share: float | None) -> int:
        return self._max_tokens

    def num_rows(self, num_running: int, hopes: Sequence[float]) -> int:
        return len(hopes)

    def learn(self, report: StepReport, seconds: float) -> None:
        """It knows already."""


class PayingBudget:
    """As much as pays, and nothing for a while where it does not."""

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._prices = StepPrices()
        self._pause = Pause()
        self._depth = 0
        """What was said last."""
        self._token_times: deque[float] = deque(maxlen=NUM_TIMES)
        """What it took to draft one token for all, lately; now and then prompts are read first."""
        self._num_drafting = 0
        """Steps with drafts since what others take was measured."""
        self._num_plain_left = 0
        self._was_plain = False

    @property
    def is_paused(self) -> bool:
        return self._pause.is_on

    @property
    def num_pauses(self) -> int:
        return self._pause.num_pauses

    def begins(self, num_running: int) -> bool:
        self._depth = 0
        if not num_running or self._pause.passes() or self._measures_plain():
            return False
        return self._prices.plain_s(num_running) is not None

    def depth(self, num_running: int, num_asking: int, share: float | None) -> int:
        plain_s = self._prices.plain_s(num_running)
        self._depth = self._max_tokens
        if share is not None and plain_s is not None:
            self._depth = self._best_depth(num_running, num_asking, share, plain_s)
        return self._depth

    def num_rows(self, num_running: int, hopes: Sequence[float]) -> int:
        tried = self._prices.max_tried(num_running)
        most = min(len(hopes), max(2, num_running, 2 * tried))  # not at once what none was like
        best, best_rate = 0, MIN_GAIN
        gain, num = 0.0, 0
        while num < most:
            stop = min(most, num + max(1, num // 4))
            gain += sum(hopes[num:stop])
            num = stop
            rate = (1 + gain / num_running) / self._prices.ratio(num_running, num)
            if rate > best_rate:
                best, best_rate = num, rate
        return best

    def learn(self, report: StepReport, seconds: float) -> None:
        num_requests, num_drafted = report.num_requests, report.num_drafted
        if not num_requests or report.num_tokens != num_requests:
            self._was_plain = False
            return  # prompts, too: nothing to compare it with
        draft_s = report.draft_ms / 1e3
        pass_s = seconds - draft_s
        if self._depth:
            self._token_times.append(draft_s / self._depth)
        if num_drafted or self._was_plain:  # the first without is planned in full
            self._prices.add(num_requests, num_drafted, pass_s)
        self._was_plain = not num_drafted
        self._num_drafting += bool(num_drafted)
        plain_s = self._prices.plain_s(num_requests)
        if self._depth and plain_s is not None:
            gained_s = plain_s * report.num_accepted / num_requests
            lost_s = draft_s + (pass_s - plain_s if num_drafted else 0.0)
            if self._pause.add(gained_s - lost_s, seconds, is_drafted=bool(num_drafted)):
                self._prices.forget_drafted()

    def _measures_plain(self) -> bool:
        """Whether the next step is to show what it takes without drafts."""
        if self._num_drafting >= PLAIN_EVERY:
            self._num_plain_left, self._num_drafting = NUM_PLAIN, 0
        if not self._num_plain_left:
            return False
        self._num_plain_left -= 1
        return True

    def _best_depth(self, num_running: int, num_asking: int, share: float, plain_s: float) -> int:
        num_tried = self._prices.max_tried(num_running) // num_asking
        token_s = median(self._token_times) if self._token_times else 0.0
        best, best_rate, gain = 0, MIN_GAIN, 0.0
        for depth in range(1, min(self._max_tokens, max(1, 2 * num_tried)) + 1):
            gain += share**depth * num_asking / num_running
            ratio = self._prices.ratio(num_running, depth * num_asking)
            rate = (1 + gain) / (ratio + depth * token_s / plain_s)
            if rate > best_rate:
                best, best_rate = depth, rate
        return best
