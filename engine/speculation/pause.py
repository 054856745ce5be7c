"""Pauses drafting while it takes more time than it saves.

    active    saved time is added up. Drafting loses time, or no draft token
              is worth verifying                                       -> pause, because of loss
              no draft tokens for a while                              -> pause
    pause     lasts until the loss is at most 0.5 % of the time; then  -> active
              unless a trial is known to gain nothing                  -> pause as long again
    trial     the first steps, and the steps after a pause because of loss: learnt acceptance rates
              are forgotten, and some tokens are verified whatever their probability

Time that drafts have saved is a credit, up to a number of steps, from which losses are paid. While
it lasts, pauses are short and end when the running requests have left, because drafts may work
better for the next ones: often one or two answers of ten gain what all others lose together. Only
the part of a loss that exceeds the credit makes a pause long.

A pause is longer if less could be gained, and if several pauses in a row ended without a gain.
Drafting is inactive until the last steps of a pause, the warm-up, in which the drafter reads passes
again and step times are measured again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

TRIAL_SHARE = 0.005
"""Share of the total time that drafts may lose where they do not pay."""
MIN_SAVED_SHARE = 0.05
"""Drafts must save this share of the time to count as a gain; less may be chance."""
WINDOW, FIRST_WINDOW = 64, 24
"""Number of steps over which saved time is added up: usually, and after a pause, where it is
shorter so that a trial costs little."""
MAX_LOSS, MAX_LOSS_OF_TRIAL = 4.0, 1.5
"""Loss within a window that begins a pause at once, in times of a plain step: with credit, and
without."""
IDLE_AFTER, MAX_LOSS_IDLE = 12, 0.5
"""Number of steps in a row without draft tokens to verify after which a pause begins; and the loss
in such steps, in times of a plain step, that begins a pause earlier if drafts were found not worth
verifying and there is no credit. Looking for drafts takes time even where none are found."""
TRIAL_TOKENS = 12
"""Number of draft tokens that a trial verifies whatever their probability."""
MIN_PAUSE = 32.0
"""Shortest pause, in times of a plain step."""
MAX_CREDIT = 32.0
"""Limit of the credit, in times of a plain step: a quarter of a short answer."""
MAX_PROLONGED = 8
"""How often a pause is prolonged at most. A limit is needed because step times may have changed."""
MAX_GROWTH = 4.0
"""Limit of the factor by which pauses grow while they end without a gain."""
MIN_POSSIBLE_GAIN = 0.1
"""Lower bound of the possible gain, so that pauses do not become arbitrarily long."""
WARM_UP_STEPS = 16
"""Least number of steps of the warm-up at the end of a pause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """What drafting gained or lost in one step."""

    saved_s: float
    """Seconds that plain decoding would have taken longer for the same tokens; negative if drafting
    lost time."""
    spent_s: float
    """Seconds of the whole step."""
    plain_s: float
    """Seconds of a step without drafts."""
    num_running: int
    num_verified: int
    is_refused: bool
    """Whether the budget found no draft token worth making or verifying."""


class Pause:
    """Belongs to one thread; `num_pauses` and `has_lost` may be read by others."""

    def __init__(self, warm_up_steps: int = WARM_UP_STEPS) -> None:
        """`warm_up_steps`: number of steps at the end of a pause that the drafter needs to get
        ready."""
        self._warm_up_steps = max(warm_up_steps, WARM_UP_STEPS)
        self.num_pauses = 0
        """Number of pauses so far that began because of loss."""
        self.has_lost = False
        """Whether drafts have lost time, or were not worth verifying, and have gained none
        since."""
        self.is_inactive = False
        """Whether a pause is on and its warm-up has not begun."""
        self._pause_s = 0.0
        """Seconds of steps until the pause is over."""
        self._whole_pause_s, self._num_prolonged = 0.0, 0
        self.would_gain_nothing = False
        """Set if unverified drafts made during the pause would have gained nothing: it is prolonged
        then."""
        self._growth = 1.0
        self._is_trial_next = False
        self._num_trial_tokens = TRIAL_TOKENS
        """Tokens that the trial has yet to verify. The first steps of an engine are a trial."""
        self._num_running_before = self._num_left = 0
        """Number of requests that ran when the pause began, and that have left since."""
        self._begin_window(FIRST_WINDOW)
        self._credit_s = 0.0
        """Seconds that drafts have saved and not lost again; negative for a loss beyond that."""
        self._num_idle = 0
        self._idle_s = 0.0
        """Number of the last steps in a row without draft tokens to verify, and the seconds that
        they lost."""
        self._is_idle_refused = False

    @property
    def is_on(self) -> bool:
        return self._pause_s > 0

    @property
    def is_trial(self) -> bool:
        return self._num_trial_tokens > 0

    def begins_trial(self) -> bool:
        """Whether the next step is the first of a trial. Returns True once per trial."""
        begins, self._is_trial_next = self._is_trial_next, False
        if begins:
            self._num_trial_tokens = TRIAL_TOKENS
        return begins

    def add_paused_step(self, seconds: float, could_pay: Callable[[], bool]) -> None:
        """Take in a step during a pause. `could_pay` tells whether drafts with an optimistic
        acceptance rate would be worth verifying, by the known step times."""
        self._pause_s -= seconds
        warm_up_s = self._warm_up_steps * seconds
        if self.is_inactive and self._pause_s <= warm_up_s and self._is_prolonged(could_pay):
            self._pause_s += self._whole_pause_s
            self._num_prolonged += 1
        self.is_inactive = self._pause_s > warm_up_s

    def skip(self, seconds: float) -> None:
        """Take in that steps of `seconds` in all are over, before the warm-up."""
        self._pause_s -= seconds

    def skippable_s(self, step_s: float) -> float:
        """Seconds until the warm-up begins, if steps take `step_s` each; 0 if it has begun."""
        return max(0.0, self._pause_s - self._warm_up_steps * step_s) if self.is_inactive else 0.0

    def end(self) -> None:
        """End the pause because drafts have become worthwhile. No trial follows: learnt acceptance
        rates and step times are kept."""
        self._pause_s = 0.0
        self.is_inactive = self._is_trial_next = False

    def lose(self, seconds: float) -> None:
        """Charge seconds spent on drafting outside a step's balance to the credit."""
        self._credit_s -= seconds

    def left(self) -> None:
        """Note that a request has left. With credit, the pause ends once all requests that ran at
        its beginning have left."""
        self._num_left += 1
        if self._num_left >= self._num_running_before and self._has_credit:
            self._pause_s = 0.0
            self.is_inactive = False

    def add(self, balance: Balance, possible_gain: Callable[[], float]) -> None:
        """Take in the balance of a step that was drafted for, and begin a pause if it is time.
        `possible_gain` returns the most that drafts could gain, as a share of plain decoding's
        speed."""
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
            self._begin(balance, possible_gain(), is_loss=True)
        elif self._num_idle >= IDLE_AFTER or (
            not self._has_credit  # after a gain, one slow step may be chance
            and self._is_idle_refused
            and self._idle_s > MAX_LOSS_IDLE * balance.plain_s
        ):
            self._begin(balance, possible_gain(), is_loss=self._is_idle_refused)
        elif is_over:
            if self._saved_s > MIN_SAVED_SHARE * self._spent_s:
                self.has_lost, self._growth = False, 1.0
            self._credit_s = max(0.0, self._credit_s)
            self._begin_window(WINDOW)

    @property
    def _has_credit(self) -> bool:
        return self._credit_s > 0

    def _is_prolonged(self, could_pay: Callable[[], bool]) -> bool:
        """Whether a trial would gain nothing, judged by unverified drafts or by step times."""
        if self._num_prolonged >= MAX_PROLONGED:
            return False
        return self.would_gain_nothing or (self._is_trial_next and not could_pay())

    def _begin(self, balance: Balance, possible_gain: float, *, is_loss: bool) -> None:
        allowed = TRIAL_SHARE * min(1.0, max(MIN_POSSIBLE_GAIN, possible_gain))
        if self._has_credit:
            self._growth = 1.0
        self._pause_s = self._growth * max(MIN_PAUSE * balance.plain_s, -self._credit_s / allowed)
        self._whole_pause_s, self._num_prolonged, self.would_gain_nothing = self._pause_s, 0, False
        self._growth = min(2 * self._growth, MAX_GROWTH)
        self.is_inactive = False
        self._num_running_before, self._num_left = balance.num_running, 0
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
        """Like `_saved_s`, except that each step loses at most the time of a plain step: reading a
        prompt is an investment, and a stall says nothing about drafts."""
