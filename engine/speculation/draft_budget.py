"""How much to draft: as much as pays, by what steps with so many drafts took before.

    begins     whether to draft in this step
    depth      tokens a request to ask the drafter for
    num_rows   of all it drafted, the most hopeful that the pass is to verify
    learn      what the step took

What is the most: tokens a second, (running + hoped for) / seconds, over the number of rows. Beside
prompts, whose passes are bound by arithmetic, each row costs what a token of a prompt does.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from baton.engine.request.step_report import StepReport
from baton.engine.speculation.draft_prices import DraftPrices
from baton.engine.speculation.pause import Balance, Pause
from baton.engine.speculation.step_prices import StepPrices
from baton.engine.speculation.watch import WORTH

MIN_GAIN = 1.03
"""Times the tokens a second without drafts that they must promise."""
PLAIN_EVERY, PLAIN_SELDOM, NUM_PLAIN = 32, 128, 2
"""After so many steps with drafts come so many without: what those take is to stay known. Seldom
where drafts win so much that it hardly matters, and each step without forgoes it."""
SURE_GAIN = 0.3
"""Share of the time saved from which on `PLAIN_SELDOM` holds."""
MIN_COMPARED = 16
"""Drafts that nobody verified from which on they tell that a trial would come to nothing."""
MAX_STALL, MAX_DRAFTING = 3.0, 32.0
"""A step, and drafting in it, that takes more times what a step without drafts does counts as if it
took so many."""


class DraftBudget(Protocol):
    max_tokens: int
    """Most drafted tokens of a request."""

    @property
    def is_paused(self) -> bool:
        """Nothing is drafted for many steps."""

    @property
    def is_pause_deep(self) -> bool:
        """Whether the pause will not end soon."""

    @property
    def num_pauses(self) -> int:
        """The pauses so far that began because drafts lost time."""

    @property
    def has_lost(self) -> bool:
        """Drafts have lost time, and won none since."""

    def begins(self, num_running: int) -> bool:
        """Whether to draft for the next step; asked once each."""

    def begins_trial(self) -> bool:
        """Whether what is known of drafts shall be forgotten for it; asked once each."""

    def depth(self, num_running: int, num_asking: int, share: float | None) -> int:
        """Tokens to draft for each who asks, of those who run.

        `share`: of drafted tokens those that are right, if drafting more takes longer.
        """

    def num_rows(self, num_running: int, hopes: Sequence[float]) -> int:
        """How many of the drafted tokens to verify; `hopes`: how likely each is to survive, the
        most hopeful first."""

    def learn(self, report: StepReport, seconds: float) -> None:
        """A step is over, drafted for or not."""

    def row_price(self, num_running: int) -> float | None:
        """What a verified token costs, in tokens; None if it is not known."""

    def watched(self, gain: float, num_compared: int) -> bool:
        """Whether the pause ends because so many drafts that nobody verified would have won so
        many tokens each, less what they cost."""

    def left(self) -> None:
        """A request has left the engine."""


class FixedBudget:
    """Always all: for tests, and to see what a method does."""

    is_paused = is_pause_deep = has_lost = False
    num_pauses = 0

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens

    def begins(self, num_running: int) -> bool:
        return True

    def begins_trial(self) -> bool:
        return False

    def depth(self, num_running: int, num_asking: int, share: float | None) -> int:
        return self.max_tokens

    def num_rows(self, num_running: int, hopes: Sequence[float]) -> int:
        return len(hopes)

    def learn(self, report: StepReport, seconds: float) -> None:
        """It knows already."""

    def row_price(self, num_running: int) -> float | None:
        return None

    def watched(self, gain: float, num_compared: int) -> bool:
        return False

    def left(self) -> None:
        """It does not matter."""


class PayingBudget:
    """A budget of as many drafted tokens as pay, and none for a while where they do not."""

    def __init__(self, max_tokens: int, *, steps_before: int = 0, at_once: bool = False) -> None:
        """`steps_before`: the last steps of a rest, in which the drafter gets ready. `at_once`: it
        makes all tokens of a draft in one pass."""
        self.max_tokens = max_tokens
        self._prices = StepPrices()
        self._pause = Pause(steps_before)
        self._depth = 0
        """What was said last."""
        self._was_asked = self._is_refused = False
        """Whether this step was asked for drafts, and whether none was worth verifying."""
        self._at_once = at_once
        self._draft_prices = DraftPrices(at_once=at_once)
        self._num_drafting = 0
        """Steps with drafts since what others take was measured."""
        self._hope = 1.0
        """Share of drafted tokens that may yet be right: of those that take longer to make half as
        many wrong as lately."""
        self._gain = 0.0
        """What drafts save lately, in shares of the time."""
        self._num_plain_left = 0
        self._was_plain = self._was_mixed = False
        """The last step: all decoded, without drafts; there were prompts in it."""

    @property
    def is_paused(self) -> bool:
        return self._pause.is_on

    @property
    def is_pause_deep(self) -> bool:
        return self._pause.is_deep

    @property
    def num_pauses(self) -> int:
        return self._pause.num_pauses

    @property
    def has_lost(self) -> bool:
        return self._pause.has_lost

    def begins(self, num_running: int) -> bool:
        self._depth, self._is_refused = 0, False
        self._was_asked = (
            num_running > 0
            and not self._pause.is_on
            and not self._measures_plain()
            and self._prices.plain_s(num_running) is not None
        )
        return self._was_asked

    def begins_trial(self) -> bool:
        begins = self._pause.begins_trial()
        if begins:
            self._prices.forget_drafted()
            self._draft_prices.forget()
        return begins

    def depth(self, num_running: int, num_asking: int, share: float | None) -> int:
        plain_s = self._prices.plain_s(num_running)
        self._depth = self.max_tokens
        self._hope = 1.0 if share is None else (1 + share) / 2
        if share is not None and plain_s is not None:
            self._depth = self._best_depth(num_running, num_asking, share, plain_s)
        if self._pause.is_trial:
            self._depth = max(self.max_tokens if self._at_once else 1, self._depth)
        self._is_refused = not self._depth
        return self._depth

    def num_rows(self, num_running: int, hopes: Sequence[float]) -> int:
        tried = self._prices.max_tried(num_running)
        most = min(len(hopes), max(2, num_running, 2 * tried))  # not at once what none was like
        best, best_rate = int(self._pause.is_trial), MIN_GAIN
        gain, num = 0.0, 0
        while num < most:
            stop = min(most, num + max(1, num // 4))
            gain += sum(hopes[num:stop])
            num = stop
            rate = (1 + gain / num_running) / self._ratio(num_running, num)
            if rate > best_rate:
                best, best_rate = num, rate
        self._is_refused = not best
        return best

    def learn(self, report: StepReport, seconds: float) -> None:
        if self._pause.is_deep:  # what steps take will be measured when it matters again
            self._pause.rest(seconds)
            self._was_plain = False
            return
        was_asked, self._was_asked = self._was_asked, False
        if not report.num_requests:
            return
        recall_s, draft_s = report.recall_ms / 1e3, report.draft_ms / 1e3
        seconds -= recall_s  # work of prompts, once each: drafts are judged without
        self._pause.lose(recall_s)
        if self._pause.is_on:
            self._pause.rest(seconds)
            self._pause.lose(draft_s)
        if self._depth and was_asked:
            self._draft_prices.add(self._depth, draft_s)
        balance = self._balance(report, seconds, draft_s) if was_asked else None
        self._measure(report, seconds - draft_s)
        if balance is not None:
            gain = balance.saved_s / balance.spent_s if balance.spent_s > 0 else 0.0
            self._gain += (gain - self._gain) / 16
            self._pause.add(balance, partial(self._stake, balance.num_running))

    def row_price(self, num_running: int) -> float | None:
        return self._prices.row_price(num_running)

    def watched(self, gain: float, num_compared: int) -> bool:
        if gain > WORTH:
            self._pause.wake()
            return True
        self._pause.is_hopeless = num_compared >= MIN_COMPARED and gain < WORTH / 2
        return False

    def left(self) -> None:
        self._pause.left()

    def _balance(self, report: StepReport, seconds: float, draft_s: float) -> Balance | None:
        """None if it is not known what steps take without drafts."""
        num_decoding = report.num_running if _is_mixed(report) else report.num_requests
        plain_s = self._prices.plain_s(num_decoding) if num_decoding else None
        if plain_s is None:
            return None
        lost_s = min(draft_s, MAX_DRAFTING * plain_s)
        if _is_mixed(report):
            lost_s += (seconds - draft_s) * report.num_drafted / _num_rows(report)
        elif (
            report.num_drafted or not self._was_plain
        ):  # to plan anew behind drafts takes time, too
            lost_s += min(seconds - draft_s, MAX_STALL * plain_s) - plain_s
        return Balance(
            saved_s=plain_s * report.num_accepted / num_decoding - lost_s,
            spent_s=seconds,
            plain_s=plain_s,
            num_running=num_decoding,
            num_verified=report.num_drafted,
            is_refused=self._is_refused,
        )

    def _measure(self, report: StepReport, pass_s: float) -> None:
        num_drafted = report.num_drafted
        self._was_mixed = _is_mixed(report)
        if self._was_mixed:
            self._prices.add_mixed(_num_rows(report), pass_s)
        elif num_drafted or self._was_plain:  # the first without is planned in full
            self._prices.add(report.num_requests, num_drafted, pass_s)
        self._was_plain = not (num_drafted or self._was_mixed)
        self._num_drafting += bool(num_drafted)

    def _measures_plain(self) -> bool:
        """Whether the next step is to show what it takes without drafts."""
        is_sure = self._gain > SURE_GAIN
        if self._num_drafting >= (PLAIN_SELDOM if is_sure else PLAIN_EVERY):
            self._num_plain_left, self._num_drafting = NUM_PLAIN, 0
        if not self._num_plain_left:
            return False
        self._num_plain_left -= 1
        return True

    def _ratio(self, num_running: int, num_drafted: int) -> float:
        """What the next step takes with drafts, in steps without."""
        row_s, plain_s = self._prices.row_s, self._prices.plain_s(num_running)
        if self._was_mixed and row_s is not None and plain_s is not None:
            return 1 + num_drafted * row_s / plain_s
        return self._prices.ratio(num_running, num_drafted)

    def _stake(self, num_running: int) -> float:
        """What it would win to draft all that may be, were as much of it right as may be hoped."""
        plain_s = self._prices.plain_s(num_running)
        best = gain = 0.0
        for depth in range(1, self.max_tokens + 1):
            gain += self._hope**depth
            ratio = self._ratio(num_running, depth * num_running)
            if plain_s is not None:
                ratio += self._draft_prices.seconds(depth) / plain_s
            best = max(best, (1 + gain) / ratio)
        return best - 1

    def _best_depth(self, num_running: int, num_asking: int, share: float, plain_s: float) -> int:
        num_tried = self._prices.max_tried(num_running) // num_asking
        deepest = self.max_tokens if self._at_once else max(1, 2 * num_tried)
        best, best_rate, gain = 0, MIN_GAIN, 0.0
        for depth in range(1, min(self.max_tokens, deepest) + 1):
            gain += share**depth * num_asking / num_running
            ratio = self._ratio(num_running, depth * num_asking)
            rate = (1 + gain) / (ratio + self._draft_prices.seconds(depth) / plain_s)
            if rate > best_rate:
                best, best_rate = depth, rate
        return best


def _is_mixed(report: StepReport) -> bool:
    """There are prompts in it."""
    return report.num_tokens > report.num_requests


def _num_rows(report: StepReport) -> int:
    return report.num_tokens + report.num_drafted
