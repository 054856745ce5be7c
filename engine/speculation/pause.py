"""When to leave drafting be: while it takes more time than it saves.

active     for a few steps; what they saved is added up          lost -> paused
paused     for 64 steps, then active again for a trial           lost again -> twice as long
"""

from __future__ import annotations

WINDOW, TRIAL = 48, 12
"""Steps that are added up; and those after a pause, so that to try again costs little."""
MIN_PAUSE, MAX_PAUSE = 64, 8192
TOLERANCE = 0.005
"""The share of the time that may be lost before it counts."""


class Pause:
    """Single-threaded; `num_pauses` may be read by others."""

    def __init__(self) -> None:
        self.num_pauses = 0
        self._left = 0
        """Steps of the pause that are left."""
        self._length = MIN_PAUSE
        self._window = TRIAL
        self._num_steps = 0
        self._saved_s = self._spent_s = 0.0

    @property
    def is_on(self) -> bool:
        return self._left > 0

    def passes(self) -> bool:
        """Whether the next step is one of a pause."""
        if not self._left:
            return False
        self._left -= 1
        return True

    def add(self, saved_s: float, spent_s: float) -> None:
        """An active step took `spent_s`; without drafts its tokens had taken so much more."""
        self._num_steps += 1
        self._saved_s += saved_s
        self._spent_s += spent_s
        if self._num_steps < self._window:
            return
        if self._saved_s < -TOLERANCE * self._spent_s:
            self._left, self._window = self._length, TRIAL
            self._length = min(2 * self._length, MAX_PAUSE)
            self.num_pauses += 1
        else:
            self._length, self._window = MIN_PAUSE, WINDOW
        self._num_steps = 0
        self._saved_s = self._spent_s = 0.0
