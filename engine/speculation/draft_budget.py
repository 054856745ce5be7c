"""How many tokens to draft: as many as pay, given what earlier steps with as many drafts took.

    begins     whether to draft in this step
    depth      tokens a request to ask the drafter for
    num_rows   how many of the drafted tokens, the likeliest, the pass is to verify
    learn      what the step took

The arithmetic, and whether a trial could pay at all: `payoff.py`. When to pause: `pause.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from baton.engine.request.step_report import StepReport
from baton.engine.speculation.pause import Pause
from baton.engine.speculation.payoff import Payoff, is_mixed, num_rows
from baton.engine.speculation.watch import WORTH

PLAIN_EVERY, PLAIN_SELDOM, NUM_PLAIN = 32, 128, 2
"""After so many steps with drafts come so many without: what those take is to stay known. Seldom
where drafts win so much that it hardly matters, and each step without forgoes it."""
SURE_GAIN = 0.3
"""Share of the time saved from which on `PLAIN_SELDOM` holds."""
MAX_NAP = 32.0
"""Steps of a rest that are added up together: one may take longer than those before."""
MIN_COMPARED = 8
"""Drafts that nobody verified from which on they tell that a trial would come to nothing."""


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

    def nap_s(self, step_s: float) -> float:
        """Seconds of steps to come, such as the last one, in which it need be told of nothing; 0
        if it is to learn from the next."""

    def slept(self, seconds: float) -> None:
        """Steps are over of which it was told nothing else."""

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

    def nap_s(self, step_s: float) -> float:
        return 0.0

    def slept(self, seconds: float) -> None:
        """It does not."""

    def row_price(self, num_running: int) -> float | None:
        return None

    def watched(self, gain: float, num_compared: int) -> bool:
        return False

    def left(self) -> None:
        """It does not matter."""


class AdaptiveBudget:
    """A budget of as many drafted tokens as pay, and none for a while where they do not."""

    def __init__(self, max_tokens: int, *, steps_before: int = 0, at_once: bool = False) -> None:
        """`steps_before`: the last steps of a rest, in which the drafter gets ready. `at_once`: it
        makes all tokens of a draft in one pass."""
        self.max_tokens = max_tokens
        self._payoff = Payoff(max_tokens, at_once=at_once)
        self._pause = Pause(steps_before)
        self._depth = 0
        """What was said last."""
        self._was_asked = self._is_refused = False
        """Whether this step was asked for drafts, and whether none was worth verifying."""
        self._at_once = at_once
        self._num_drafting = 0
        """Steps with drafts since what others take was measured."""
        self._hope = 1.0
        """Share of drafted tokens that may yet be right: of those that take longer to make half as
        many wrong as lately."""
        self._gain = 0.0
        """What drafts save lately, in shares of the time."""
        self._num_plain_left = 0
        self._was_plain = False
        """In the last step all decoded, without drafts."""

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
            and self._payoff.steps.plain_s(num_running) is not None
        )
        return self._was_asked

    def begins_trial(self) -> bool:
        begins = self._pause.begins_trial()
        if begins:
            self._payoff.forget()
        return begins

    def depth(self, num_running: int, num_asking: int, share: float | None) -> int:
        self._depth = self.max_tokens
        self._hope = 1.0 if share is None else (1 + share) / 2
        if share is not None:
            self._depth = self._payoff.best_depth(num_running, num_asking, share)
        if self._pause.is_trial:
            self._depth = max(self.max_tokens if self._at_once else 1, self._depth)
        self._is_refused = not self._depth
        return self._depth

    def num_rows(self, num_running: int, hopes: Sequence[float]) -> int:
        best = self._payoff.best_rows(num_running, hopes)
        if not best and hopes:
            best = int(self._pause.is_trial)
        self._is_refused = not best
        return best

    def learn(self, report: StepReport, seconds: float) -> None:
        if self._pause.is_deep:  # what steps take will be measured when it matters again
            self._rest(report, seconds)
            self._was_plain = False
            return
        was_asked, self._was_asked = self._was_asked, False
        if not report.num_requests:
            return
        recall_s, draft_s = report.recall_ms / 1e3, report.draft_ms / 1e3
        seconds -= recall_s  # work of prompts, once each: drafts are judged without
        self._pause.lose(recall_s)
        if self._pause.is_on:
            self._rest(report, seconds)
            self._pause.lose(draft_s)
        if self._depth and was_asked:
            self._payoff.drafts.add(self._depth, draft_s)
        balance = None
        if was_asked:
            balance = self._payoff.balance(
                report, seconds, was_plain=self._was_plain, is_refused=self._is_refused
            )
        self._measure(report, seconds - draft_s)
        if balance is not None:
            gain = balance.saved_s / balance.spent_s if balance.spent_s > 0 else 0.0
            self._gain += (gain - self._gain) / 16
            self._pause.add(balance, partial(self._payoff.stake, balance.num_running, self._hope))

    def nap_s(self, step_s: float) -> float:
        return min(self._pause.deep_s(step_s), MAX_NAP * step_s)

    def slept(self, seconds: float) -> None:
        self._pause.sleep(seconds)

    def row_price(self, num_running: int) -> float | None:
        return self._payoff.steps.row_price(num_running)

    def watched(self, gain: float, num_compared: int) -> bool:
        if gain > WORTH:
            self._pause.wake()
            return True
        self._pause.is_hopeless = num_compared >= MIN_COMPARED and gain < WORTH / 2
        return False

    def left(self) -> None:
        self._pause.left()

    def _rest(self, report: StepReport, seconds: float) -> None:
        num_running = max(1, report.num_running or report.num_requests)
        self._pause.rest(seconds, partial(self._could_pay, num_running))

    def _could_pay(self, num_running: int) -> bool:
        """Whether as many right drafts as may be hoped for would be worth their rows."""
        return self._payoff.stake(num_running, self._hope, is_free=True) > 0

    def _measure(self, report: StepReport, pass_s: float) -> None:
        num_drafted, payoff = report.num_drafted, self._payoff
        payoff.is_beside_prompts = is_mixed(report)
        if payoff.is_beside_prompts:
            payoff.steps.add_mixed(num_rows(report), pass_s)
        elif num_drafted or self._was_plain:  # the first without is planned in full
            payoff.steps.add(report.num_requests, num_drafted, pass_s)
        self._was_plain = not (num_drafted or payoff.is_beside_prompts)
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
