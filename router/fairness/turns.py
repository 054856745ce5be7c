"""The order of the prompts that wait for one replica.

    due = arrival + min(3 * work, max(3 * typical work, line))            (seconds; the least first)

This is a compromise between first come, first served, where a short prompt waits for every long one
before it, and shortest first, where a long prompt may starve. Prompts that arrive a little later
and take much less may pass a prompt, but delay it by no more than three typical prompts' time, or
by all that waits in the line; if three prompts make a line of minutes, it is first come, first
served. A step of priority is worth ten seconds, and at most ten steps count, so that no prompt
waits for ever behind urgent ones.

A prompt with an objective (`slo.py`) is due when it must begin to be in time, at most 100 s after
its arrival: the least slack goes first. A prompt that will be late anyway goes after all that will
not, unless it takes a tenth of a typical prompt or less, which costs the others little.
"""

from __future__ import annotations

import math

import numpy as np

from baton.router.fairness.slo import last_offset_s, start_offset_s
from baton.router.prompt import Prompt
from baton.router.table.columns import Numbers

STRETCH = 3.0
"""Mean against tail: 1 to 20 were tried (docs/router.md)."""
MAX_LATER = 3.0
"""The most by which others may pass a prompt, in typical prompts: 1 to 60 were tried. More is
better for the mean and worse for the tail."""
PRIORITY_S = 10.0
MAX_STEPS = 10
WEIGHT = 0.01
"""Weight of the last prompt in the mean work of a prompt."""


def bounded_steps(priority: int) -> int:
    """The priority, limited to the range that counts."""
    return min(max(priority, -MAX_STEPS), MAX_STEPS)


def later_s(priority: int) -> float:
    """Seconds by which a prompt of this priority is due later."""
    return bounded_steps(priority) * PRIORITY_S


class Turns:
    def __init__(self, *, knows_objectives: bool = True) -> None:
        self._knows_objectives = knows_objectives
        self._num_observed = 0
        self.typical_s = 0.0
        """Seconds of a typical prompt without cached tokens: a mean over about the last hundred."""

    def observe(self, work_s: float) -> None:
        """A prompt was placed that takes so long where nothing of it is cached."""
        if not math.isfinite(work_s):  # a mean would keep it for ever
            return
        self._num_observed += 1
        self.typical_s += (work_s - self.typical_s) * max(WEIGHT, 1 / self._num_observed)

    @property
    def latest_s(self) -> float:
        """The most seconds by which later prompts may pass one, where the line is shorter than
        that."""
        return MAX_LATER * self.typical_s

    def due_by_s(self, prompt: Prompt) -> float:
        """When the prompt's first token is due, if these turns know of objectives; else infinite,
        as of one that has none."""
        return prompt.due_s if self._knows_objectives else math.inf

    def due_s(self, prompt: Prompt, work_s: float, line_s: float, now: float) -> float:
        """`work_s` is what it takes on the replica it waits for, `line_s` what all do who wait."""
        latest_s = max(self.latest_s, line_s)
        offset_s = min(STRETCH * work_s, latest_s)
        if (due_by_s := self.due_by_s(prompt)) < math.inf:
            arrived_s = prompt.arrived_s
            due_in_s, waited_s = due_by_s - arrived_s, now - arrived_s
            last_s = last_offset_s(offset_s, self.latest_s, latest_s)
            offset_s = float(start_offset_s(due_in_s, waited_s, work_s, last_s))
        return prompt.arrived_s + offset_s + later_s(prompt.priority)

    def dues_s(self, prompt: Prompt, work_s: Numbers, line_s: Numbers, now: float) -> Numbers:
        """The due time of the prompt on each of several replicas that it might wait for."""
        latest_s = np.maximum(self.latest_s, line_s)
        offset_s: Numbers = np.minimum(STRETCH * work_s, latest_s)
        if (due_by_s := self.due_by_s(prompt)) < math.inf:
            arrived_s = prompt.arrived_s
            due_in_s, waited_s = due_by_s - arrived_s, now - arrived_s
            last_s = last_offset_s(offset_s, self.latest_s, latest_s)
            offset_s = start_offset_s(due_in_s, waited_s, work_s, last_s)
        return prompt.arrived_s + offset_s + later_s(prompt.priority)
