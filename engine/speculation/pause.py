"""When to pause drafting: while it takes more time than it saves.

    active    what drafts save is added up; they lose, or are not worth a row   -> rest, for loss
              there was nothing to verify for a while                           -> rest
    rest      what was lost is at most 0.5 % of it; over                        -> active
              a trial would gain nothing, by what is known                      -> as long again
    trial     the first steps, and those after a rest for loss: what is known of drafts is
              forgotten, and some tokens are verified whatever their probability

Losses are paid from a credit: what drafts saved before, limited to a number of steps. As long as it
lasts, rests are short and end with the running requests, because the next ones may be luckier: of
ten answers one or two gain what all others lose together. Only the part of a loss that exceeds the
credit makes a rest long.

The less there is to gain, the longer is a rest; and the longer, the more rests came to nothing
since drafts last had a credit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

TRIAL_SHARE = 0.005
"""Share of the time that drafts that do not pay may lose in all."""
WON = 0.05
"""Share of the time that drafts must save to be taken for good ones; less may be chance."""
WINDOW, FIRST_WINDOW = 64, 24
"""Steps that are added up; and those after a rest, so that to try again costs little."""
MAX_LOSS, MAX_LOSS_OF_TRIAL = 4.0, 1.5
"""Steps without drafts: who loses so much time in a few steps rests at once; and who has won
nothing since the last rest."""
IDLE_AFTER, MAX_LOSS_IDLE = 12, 0.5
"""Steps in a row without anything to verify; and what they may lose if there were drafts that were
not worth a row and none have won since the last rest, in steps without drafts. To look for drafts
takes time even where none is found."""
TRIAL_TOKENS = 12
"""Drafted tokens that a trial verifies whatever is hoped of them."""
MIN_REST = 32.0
"""Steps without drafts."""
MAX_CREDIT = 32.0
"""What may be lost again, at most, of what drafts have saved, in steps without drafts: a quarter of
a short answer."""
MAX_PROLONGED = 8
"""Times that a rest is prolonged, at most: prices may have changed."""
MAX_GROWTH = 4.0
"""Times that a rest becomes as long, at most, because those before came to nothing."""
LEAST_STAKE = 0.1
STEPS_BEFORE = 16
"""The last steps of a rest, in which is measured anew what steps take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """What drafting came to in one step."""

    saved_s: float
    """Seconds that its tokens would have taken longer without drafts; less than 0: it lost."""
    spent_s: float
    """All of the step."""
    plain_s: float
    """A step without drafts."""
    num_running: int
    num_verified: int
    is_refused: bool
    """There were drafts, or would have been: none was worth a row."""


class Pause:
    """Single-threaded; `num_pauses` and `has_lost` may be read by others."""

    def __init__(self, steps_before: int = STEPS_BEFORE) -> None:
        """`steps_before`: the last steps of a rest, in which to get ready."""
        self._steps_before = max(steps_before, STEPS_BEFORE)
        self.num_pauses = 0
        """Rests for loss."""
        self.has_lost = False
        """Drafts lost time, or were not worth a row, and have won none since."""
        self.is_deep = False
        """Whether it rests, and will for many more steps."""
        self._rest_s = 0.0
        """Seconds of steps until the rest is over."""
        self._whole_rest_s, self._num_prolonged = 0.0, 0
        self.is_hopeless = False
        """Drafts that nobody verified meanwhile would have won nothing: the rest is prolonged."""
        self._growth = 1.0
        self._is_trial_next = False
        self._num_trial_tokens = TRIAL_TOKENS
        """Tokens that the trial has yet to verify; the first is at the start."""
        self._num_who_rest = self._num_left = 0
        """Requests that ran when the rest began, and those that have left since."""
        self._begin_window(FIRST_WINDOW)
        self._credit_s = 0.0
        """Seconds that drafts have saved and not lost again; less than 0: what else they lost."""
        self._num_idle = 0
        self._idle_s = 0.0
        """What the last steps lost, without anything to verify."""
        self._is_idle_refused = False

    @property
    def is_on(self) -> bool:
        return self._rest_s > 0

    @property
    def is_trial(self) -> bool:
        return self._num_trial_tokens > 0

    def begins_trial(self) -> bool:
        """Whether the step that is to be drafted for is the first of a trial; says so once."""
        begins, self._is_trial_next = self._is_trial_next, False
        if begins:
            self._num_trial_tokens = TRIAL_TOKENS
        return begins

    def rest(self, seconds: float, could_pay: Callable[[], bool]) -> None:
        """A step of a rest is over. `could_pay`: whether as many right drafts as may be hoped for
        would be worth their rows, by what is known of these."""
        self._rest_s -= seconds
        before_s = self._steps_before * seconds
        if self.is_deep and self._rest_s <= before_s and self._is_prolonged(could_pay):
            self._rest_s += self._whole_rest_s
            self._num_prolonged += 1
        self.is_deep = self._rest_s > before_s

    def sleep(self, seconds: float) -> None:
        """Steps deep in a rest are over."""
        self._rest_s -= seconds

    def deep_s(self, step_s: float) -> float:
        """Seconds until the last steps of a rest, which take so long each; 0 if they are near."""
        return max(0.0, self._rest_s - self._steps_before * step_s) if self.is_deep else 0.0

    def wake(self) -> None:
        """Drafts have become worth it: what is known of them and of their prices holds."""
        self._rest_s = 0.0
        self.is_deep = self._is_trial_next = False

    def lose(self, seconds: float) -> None:
        """Note seconds spent on drafts to come: the next rest is as long as if they had lost it."""
        self._credit_s -= seconds

    def left(self) -> None:
        """A request has left."""
        self._num_left += 1
        if self._num_left >= self._num_who_rest and self._has_credit:
            self._rest_s = 0.0
            self.is_deep = False

    def add(self, balance: Balance, stake: Callable[[], float]) -> None:
        """A step is over that was drafted for. `stake`: what right drafts could win, in shares of
        the time of a step without."""
        self._num_steps += 1
        self._saved_s += balance.saved_s
        self._evident_s += max(balance.saved_s, -balance.plain_s)
        self._spent_s += balance.spent_s
        self._credit_s = min(self._credit_s + balance.saved_s, MAX_CREDIT * balance.plain_s)
        self._num_trial_tokens = max(0, self._num_trial_tokens - balance.num_verified)
        if balance.num_verified:
            self._num_idle, self._idle_s, self._is_idle_refused = 0, 0.0, False
        else:
            self._num_idle += 1
            self._idle_s -= balance.saved_s
            self._is_idle_refused |= balance.is_refused
        is_over = self._num_steps >= self._window
        max_loss = MAX_LOSS if self._has_credit else MAX_LOSS_OF_TRIAL
        if self._evident_s < -max_loss * balance.plain_s or (
            is_over and self._saved_s < -TRIAL_SHARE * self._spent_s
        ):
            self._begin_rest(balance, stake(), is_loss=True)
        elif self._num_idle >= IDLE_AFTER or (
            not self._has_credit  # after a win, a late step may be chance
            and self._is_idle_refused
            and self._idle_s > MAX_LOSS_IDLE * balance.plain_s
        ):
            self._begin_rest(balance, stake(), is_loss=self._is_idle_refused)
        elif is_over:
            if self._saved_s > WON * self._spent_s:
                self.has_lost, self._growth = False, 1.0
            self._credit_s = max(0.0, self._credit_s)
            self._begin_window(WINDOW)

    @property
    def _has_credit(self) -> bool:
        return self._credit_s > 0

    def _is_prolonged(self, could_pay: Callable[[], bool]) -> bool:
        """Whether a trial would come to nothing, by drafts that nobody verified or by the price of
        rows."""
        if self._num_prolonged >= MAX_PROLONGED:
            return False
        return self.is_hopeless or (self._is_trial_next and not could_pay())

    def _begin_rest(self, balance: Balance, stake: float, *, is_loss: bool) -> None:
        allowed = TRIAL_SHARE * min(1.0, max(LEAST_STAKE, stake))
        if self._has_credit:
            self._growth = 1.0
        self._rest_s = self._growth * max(MIN_REST * balance.plain_s, -self._credit_s / allowed)
        self._whole_rest_s, self._num_prolonged, self.is_hopeless = self._rest_s, 0, False
        self._growth = min(2 * self._growth, MAX_GROWTH)
        self.is_deep = False
        self._num_who_rest, self._num_left = balance.num_running, 0
        self.has_lost |= is_loss
        self.num_pauses += is_loss
        self._is_trial_next = is_loss
        self._num_trial_tokens = self._num_idle = 0
        self._idle_s = 0.0
        self._is_idle_refused = False
        self._credit_s = max(0.0, self._credit_s)
        self._begin_window(FIRST_WINDOW)

    def _begin_window(self, length: int) -> None:
        self._window = length
        self._num_steps = 0
        self._saved_s = self._spent_s = 0.0
        self._evident_s = 0.0
        """As `_saved_s`, but that no single step loses more than one without drafts takes: to read
        a prompt is an investment, and a stall says nothing."""
