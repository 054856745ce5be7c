"""How many tokens to draft in a step: as many as make decoding faster, judged by the measured times
of earlier steps.

    begins     whether to draft in this step
    depth      how many tokens per request to ask the drafter for
    num_rows   how many of the draft tokens, the likeliest, the pass verifies
    learn      takes in how long the step took

The estimate of the speedup is in `payoff.py`, the rules for pausing in `pause.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from baton.engine.request.step_report import StepReport
from baton.engine.speculation.pause import Pause
from baton.engine.speculation.payoff import Payoff, is_mixed, num_rows
from baton.engine.speculation.watch import RESUME_GAIN

PLAIN_EVERY, PLAIN_SELDOM, NUM_PLAIN = 32, 128, 2
"""After `PLAIN_EVERY` steps with drafts, `NUM_PLAIN` steps run without, to keep the time of a plain
step up to date. While drafts save a large share of the time it is after `PLAIN_SELDOM` steps: plain
steps are costly then, and their exact time hardly matters."""
SURE_GAIN = 0.3
"""`PLAIN_SELDOM` applies while drafts save more than this share of the time."""
MAX_SKIPPED_STEPS = 32.0
"""Most steps of a pause whose times are added up before the budget learns of them. A limit is
needed because later steps may take longer than the one they were planned by."""
MIN_COMPARED = 8
"""Number of compared, unverified drafts after which their gain is trusted to say that a trial would
gain nothing."""


class DraftBudget(Protocol):
    """Decides how many tokens are drafted and verified in each step. Belongs to the engine's
    thread."""

    max_tokens: int
    """Most draft tokens per request and step."""

    @property
    def is_paused(self) -> bool:
        """Whether drafting is paused, for many steps."""

    @property
    def is_inactive(self) -> bool:
        """Whether drafting is paused and its warm-up has not begun: the drafter need not read
        passes."""

    @property
    def num_pauses(self) -> int:
        """Number of pauses so far that began because drafting lost time."""

    @property
    def has_lost(self) -> bool:
        """Whether drafting has lost time and saved none since."""

    def begins(self, num_running: int) -> bool:
        """Whether to draft for the next step, in which `num_running` requests run. Called once per
        step."""

    def begins_trial(self) -> bool:
        """Whether the next step begins a trial, for which the learnt acceptance rates shall be
        forgotten. Called once per step."""

    def depth(self, num_running: int, num_asking: int, share: float | None) -> int:
        """Number of tokens to draft for each of `num_asking` requests, out of `num_running`.

        `share`: the share of recent draft tokens that were accepted, for drafters whose cost grows
        with the number of tokens; None for the others.
        """

    def num_rows(self, num_running: int, probabilities: Sequence[float]) -> int:
        """How many of the draft tokens to verify. `probabilities`: of each that it is accepted, the
        likeliest first."""

    def learn(self, report: StepReport, seconds: float) -> None:
        """Take in a step that took `seconds`, with drafts or without."""

    def skippable_s(self, step_s: float) -> float:
        """Seconds of coming steps for which `learn` need not be called, if they take `step_s` each
        like the last one; 0 if it must learn from the next step."""

    def skipped(self, seconds: float) -> None:
        """Take in that steps of `seconds` in all are over for which `learn` was not called."""

    def row_price(self, num_running: int) -> float | None:
        """Cost of verifying one draft token, in tokens that plain decoding would have produced in
        the same time; None if it is not known."""

    def watched(self, gain: float, num_compared: int) -> bool:
        """Whether the pause ends now. `num_compared` drafts made during it would have gained `gain`
        tokens each on average, net of the cost of verifying them."""

    def left(self) -> None:
        """Note that a request has left the engine."""


class FixedBudget:
    """Always drafts and verifies `max_tokens`: for tests, and to measure a method on its own."""

    is_paused = is_inactive = has_lost = False
    num_pauses = 0

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens

    def begins(self, num_running: int) -> bool:
        return True

    def begins_trial(self) -> bool:
        return False

    def depth(self, num_running: int, num_asking: int, share: float | None) -> int:
        return self.max_tokens

    def num_rows(self, num_running: int, probabilities: Sequence[float]) -> int:
        return len(probabilities)

    def learn(self, report: StepReport, seconds: float) -> None:
        """Does nothing."""

    def skippable_s(self, step_s: float) -> float:
        return 0.0

    def skipped(self, seconds: float) -> None:
        """Does nothing: this budget never pauses."""

    def row_price(self, num_running: int) -> float | None:
        return None

    def watched(self, gain: float, num_compared: int) -> bool:
        return False

    def left(self) -> None:
        """Does nothing."""


class AdaptiveBudget:
    """Drafts as many tokens as make decoding faster, and pauses drafting while none do."""

    def __init__(self, max_tokens: int, *, warm_up_steps: int = 0, at_once: bool = False) -> None:
        """`warm_up_steps`: number of steps at the end of a pause in which the drafter reads passes
        again to get ready. `at_once`: the drafter makes all tokens of a draft in one pass."""
        self.max_tokens = max_tokens
        self._payoff = Payoff(max_tokens, at_once=at_once)
        self._pause = Pause(warm_up_steps)
        self._depth = 0
        """The last answer of `depth`; 0 if it was not asked in this step."""
        self._was_asked = self._is_refused = False
        """Whether this step was to be drafted for, and whether no draft token was worth
        verifying."""
        self._at_once = at_once
        self._num_drafting = 0
        """Steps with drafts since plain steps were measured last."""
        self._optimistic_share = 1.0
        """Optimistic share of accepted draft tokens: 1, or for drafters whose cost grows with the
        number of tokens the share with half as many rejections as recently."""
        self._gain = 0.0
        """Share of the time that drafts have saved in recent steps."""
        self._num_plain_left = 0
        self._was_plain = False
        """Whether the last step only decoded, without drafts."""

    @property
    def is_paused(self) -> bool:
        return self._pause.is_on

    @property
    def is_inactive(self) -> bool:
        return self._pause.is_inactive

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
        self._optimistic_share = 1.0 if share is None else (1 + share) / 2
        if share is not None:
            self._depth = self._payoff.best_depth(num_running, num_asking, share)
        if self._pause.is_trial:
            self._depth = max(self.max_tokens if self._at_once else 1, self._depth)
        self._is_refused = not self._depth
        return self._depth

    def num_rows(self, num_running: int, probabilities: Sequence[float]) -> int:
        best = self._payoff.best_rows(num_running, probabilities)
        if not best and probabilities:
            best = int(self._pause.is_trial)
        self._is_refused = not best
        return best

    def learn(self, report: StepReport, seconds: float) -> None:
        if self._pause.is_inactive:  # step times are measured again towards the end of the pause
            self._add_paused_step(report, seconds)
            self._was_plain = False
            return
        was_asked, self._was_asked = self._was_asked, False
        if not report.num_requests:
            return
        recall_s, draft_s = report.recall_ms / 1e3, report.draft_ms / 1e3
        seconds -= recall_s  # once per prompt, so a step's drafts are judged without it
        self._pause.lose(recall_s)
        if self._pause.is_on:
            self._add_paused_step(report, seconds)
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
            self._pause.add(
                balance,
                partial(self._payoff.possible_gain, balance.num_running, self._optimistic_share),
            )

    def skippable_s(self, step_s: float) -> float:
        return min(self._pause.skippable_s(step_s), MAX_SKIPPED_STEPS * step_s)

    def skipped(self, seconds: float) -> None:
        self._pause.skip(seconds)

    def row_price(self, num_running: int) -> float | None:
        return self._payoff.steps.row_price(num_running)

    def watched(self, gain: float, num_compared: int) -> bool:
        if gain > RESUME_GAIN:
            self._pause.end()
            return True
        self._pause.would_gain_nothing = num_compared >= MIN_COMPARED and gain < RESUME_GAIN / 2
        return False

    def left(self) -> None:
        self._pause.left()

    def _add_paused_step(self, report: StepReport, seconds: float) -> None:
        num_running = max(1, report.num_running or report.num_requests)
        self._pause.add_paused_step(seconds, partial(self._could_pay, num_running))

    def _could_pay(self, num_running: int) -> bool:
        """Whether drafts with the optimistic acceptance rate would be worth verifying."""
        return self._payoff.possible_gain(num_running, self._optimistic_share, is_free=True) > 0

    def _measure(self, report: StepReport, pass_s: float) -> None:
        num_drafted, payoff = report.num_drafted, self._payoff
        payoff.is_mixed = is_mixed(report)
        if payoff.is_mixed:
            payoff.steps.add_mixed(num_rows(report), pass_s)
        elif num_drafted or self._was_plain:  # the first plain step is slower: it is planned anew
            payoff.steps.add(report.num_requests, num_drafted, pass_s)
        self._was_plain = not (num_drafted or payoff.is_mixed)
        self._num_drafting += bool(num_drafted)

    def _measures_plain(self) -> bool:
        """Whether the next step runs without drafts to measure how long it takes."""
        is_sure = self._gain > SURE_GAIN
        if self._num_drafting >= (PLAIN_SELDOM if is_sure else PLAIN_EVERY):
            self._num_plain_left, self._num_drafting = NUM_PLAIN, 0
        if not self._num_plain_left:
            return False
        self._num_plain_left -= 1
        return True
