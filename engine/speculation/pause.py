"""When to leave drafting be: while it takes more time than it saves.

active     for a few steps; what they saved is added up          lost -> paused
paused     for 64 steps, then active again for a trial           lost again -> twice as long
idle       for 32 steps, where there was nothing to verify       nothing again -> twice as long
"""

from __future__ import annotations

WINDOW, TRIAL = 64, 24
"""Steps that are added up; and those after a pause, so that to try again costs little."""
MIN_PAUSE, MAX_PAUSE = 64, 8192
IDLE_AFTER, MIN_IDLE, MAX_IDLE = 12, 32, 256
"""To look for drafts takes time, too, even where none is found that pays."""
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
        self._idle_length = MIN_IDLE
        self._num_idle = 0
        """Steps since the last that verified anything."""
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

    def add(self, saved_s: float, spent_s: float, *, is_drafted: bool) -> bool:
        """An active step took `spent_s`; without drafts its tokens had taken so much more. Whether
        a pause begins."""
        self._num_steps += 1
        self._saved_s += saved_s
        self._spent_s += spent_s
        self._num_idle = 0 if is_drafted else self._num_idle + 1
        if self._num_idle >= IDLE_AFTER:
            self._left, self._num_idle = self._idle_length, 0
            self._idle_length = min(2 * self._idle_length, MAX_IDLE)
        elif self._num_steps >= self._window:
            self._judge()
        return self.is_on

    def _judge(self) -> None:
        if self._saved_s < -TOLERANCE * self._spent_s:
            self._left, self._window = self._length, TRIAL
            self._length = min(2 * self._length, MAX_PAUSE)
            self.num_pauses += 1
        else:
            self._length, self._window, self._idle_length = MIN_PAUSE, WINDOW, MIN_IDLE
        self._num_steps = 0
        self._saved_s = self._spent_s = 0.0
