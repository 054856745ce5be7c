"""The order of the prompts that wait for one replica.

    due = arrival + min(3 * work, max(3 * typical work, line))            (seconds; the least first)

Between first come first served, where a short prompt waits for every long one before it, and
shortest first, where a long one may wait for ever: a prompt lets those pass that come a little
later and take much less, but nobody by more than three typical prompts' time, or by all that
waits in that line: where minutes do, three prompts are first come first served. A step of priority
is worth ten seconds, and ten steps are the most: nobody waits for ever behind the urgent.
"""

from __future__ import annotations

import math

import numpy as np

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
    """What a priority is worth, whatever was asked for."""
    return min(max(priority, -MAX_STEPS), MAX_STEPS)


def later_s(priority: int) -> float:
    """Seconds by which a prompt of this priority is due later."""
    return bounded_steps(priority) * PRIORITY_S


class Turns:
    def __init__(self) -> None:
        self._num_heard = 0
        self.typical_s = 0.0
        """What a prompt takes where nothing of it is cached: a mean over the last hundred or so."""

    def hear(self, work_s: float) -> None:
        """A prompt was placed that takes so long where nothing of it is cached."""
        if not math.isfinite(work_s):  # a mean would keep it for ever
            return
        self._num_heard += 1
        self.typical_s += (work_s - self.typical_s) * max(WEIGHT, 1 / self._num_heard)

    @property
    def latest_s(self) -> float:
        """The most seconds by which later prompts may pass one, where the line is shorter than
        that."""
        return MAX_LATER * self.typical_s

    def due_s(self, prompt: Prompt, work_s: float, line_s: float) -> float:
        """`work_s` is what it takes on the replica it waits for, `line_s` what all do who wait."""
        latest_s = max(self.latest_s, line_s)
        return prompt.arrived_s + min(STRETCH * work_s, latest_s) + later_s(prompt.priority)

    def dues_s(self, prompt: Prompt, work_s: Numbers, line_s: Numbers) -> Numbers:
        """The due time of the prompt on each of several replicas that it might wait for."""
        latest_s = np.maximum(self.latest_s, line_s)
        return prompt.arrived_s + np.minimum(STRETCH * work_s, latest_s) + later_s(prompt.priority)
