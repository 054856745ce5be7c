"""Carries the reports of engine steps from the engine's thread to the event loop.

    step   step   step   step   step   step      0.5 ms each; no request joins or ends
       .      .      .      |      .      .       .  kept back    |  sent: the loop wakes up for all

Waking the loop, a frame, and the gateway's write to its client cost more than a short step, and
take the core and the interpreter from the engine. So the tokens of short steps leave together. No
timer is needed: a token is kept back only if the next step is sure to come, to be like this one,
and to be over in time. First tokens, last ones, and tokens before a command are sent at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from baton.core.clock import Clock, monotonic
from baton.engine.request.step_report import StepReport

KEEP_S = 0.004
"""How long a token may wait for those behind it: a quarter of what a screen shows one picture."""


class StepReports:
    """`put` and `flush` are for the engine's thread, `take` for the event loop."""

    def __init__(self, notify: Callable[[], None], clock: Clock = monotonic) -> None:
        """`notify` is called on the engine's thread when there is something to take."""
        self._notify = notify
        self._clock = clock
        self._reports: deque[StepReport] = deque()
        self._has_notified = False
        """Until the loop has come for them, which is soon."""
        self._notified_at = self._put_at = clock()

    def put(self, report: StepReport) -> None:
        before, self._put_at = self._put_at, self._clock()
        if report.outputs:
            self._reports.append(report)
        next_at = self._put_at + (self._put_at - before)
        if next_at - self._notified_at > KEEP_S or not _is_repeated(report):
            self.flush()

    def flush(self) -> None:
        """Keep nothing back."""
        if self._reports and not self._has_notified:
            self._has_notified = True
            self._notified_at = self._clock()
            self._notify()

    def take(self) -> list[StepReport]:
        """All that have come, in order."""
        self._has_notified = False  # first: a step that comes from now on notifies again
        return [self._reports.popleft() for _ in range(len(self._reports))]


def _is_repeated(report: StepReport) -> bool:
    """Whether only a command can keep the next step from being like this one."""
    return (
        report.num_waiting == 0
        and 0 < report.num_running == report.num_tokens == len(report.outputs)
        and not any(output.is_finished for output in report.outputs)
    )
