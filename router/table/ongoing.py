"""Ongoing conversations: where the next turn of each is expected, and how much work it will be.

    add_turn(session, home) --> home.num_ongoing     one more there, one less where it was
    pass_to(now)            --> home.num_ongoing     one less where no turn came for long

A replica whose conversations have just begun has been sent little so far, and will be sent more.
"""

from __future__ import annotations

from collections import OrderedDict
from math import exp, exp2, inf, isfinite
from typing import NamedTuple, Protocol

HALF_LIFE_S = 1200.0
MAX_ONGOING = 200_000
WEIGHT = 0.01
"""Weight of the last observation in what is typical, once there are many."""
FIRST_GAP_S, NUM_SUPPOSED = 30.0, 5
"""The gap in seconds that is supposed until gaps are known, and how many count as so long."""
MAX_GAPS, MARGIN_S = 4.0, 10.0
"""A conversation is over when none came for so many typical gaps, and a little more."""
NUM_SUPPOSED_BEGUN = 3.0
"""Conversations that count as having brought what is supposed, besides those that are known."""
LONG, NUM_FIRST, STEP = 0.99, 100, 0.05
"""Which share of prompts takes no longer than `long_s`, which follows by such steps (Robbins and
Monro 1951) from the longest of the first on."""


class Home(Protocol):
    """A replica that a conversation may be at."""

    num_ongoing: int


class _Last(NamedTuple):
    home: Home
    at_s: float


class Ongoing:
    def __init__(self) -> None:
        self._last_by_session: OrderedDict[str, _Last] = OrderedDict()
        """The one with the oldest report first."""
        self._gap_s, self._num_gaps = FIRST_GAP_S, NUM_SUPPOSED
        self._turn_s, self._num_at_home = 0.0, 0
        self._num_begun = self._num_turns = self._counted_at_s = 0.0
        self._num_sent, self._sent_at_s, self._between_s = 0, 0.0, 0.0
        self._long_s, self._num_long = 0.0, 0

    def __len__(self) -> int:
        """Conversations of which the next turn is expected somewhere."""
        return len(self._last_by_session)

    def future_s(self, supposed_s: float = 0.0) -> float:
        """Work that one of them still brings, on the average: as many turns as others had.
        `supposed_s`: what it is taken to be while few are known."""
        known_s = self._turn_s * self._num_turns
        num = self._num_begun + NUM_SUPPOSED_BEGUN
        return (known_s + NUM_SUPPOSED_BEGUN * supposed_s) / num

    @property
    def long_s(self) -> float:
        """The 99th percentile of the work of prompts whose conversations began or stayed. Infinite
        before the first."""
        return self._long_s if self._num_long else inf

    @property
    def sent_per_s(self) -> float:
        """Prompts, to all replicas."""
        return 1.0 / self._between_s if self._between_s else 0.0

    @property
    def turn_share(self) -> float:
        """The recent fraction of prompts that continue a conversation; the others begin one."""
        return self._num_turns / ((self._num_begun + self._num_turns) or 1.0)

    def home(self, session: str) -> Home | None:
        """The replica of its last turn."""
        last = self._last_by_session.get(session)
        return None if last is None else last.home

    def add_turn(
        self, session: str, home: Home, work_s: float, now: float, *, begins: bool
    ) -> None:
        """A prompt of the conversation was sent there, which takes `work_s`. Prompts without a
        session are ignored."""
        self._observe_prompt(now)
        last = self._last_by_session.pop(session, None)
        kept = exp2(min(self._counted_at_s - now, 0.0) / HALF_LIFE_S)
        self._num_begun, self._num_turns = self._num_begun * kept, self._num_turns * kept
        self._counted_at_s = max(self._counted_at_s, now)
        is_known = isfinite(work_s)  # what once is infinite, or no number, stays so for ever
        if is_known and (begins or last is None or last.home is home):
            self._observe_work(work_s)
        if begins or last is None:
            self._num_begun += 1.0
        else:
            self._num_turns += 1.0
            self._num_gaps += 1
            weight = max(WEIGHT, 1.0 / self._num_gaps)
            self._gap_s += (max(now - last.at_s, 0.0) - self._gap_s) * weight
            if (
                is_known and last.home is home
            ):  # elsewhere it takes what it does not have there, too
                self._num_at_home += 1
                weight = max(WEIGHT, 1.0 / self._num_at_home)
                self._turn_s += (work_s - self._turn_s) * weight
        if session:
            self._last_by_session[session] = _Last(home, now)
            if last is None or last.home is not home:
                home.num_ongoing += 1
                if last is not None:
                    last.home.num_ongoing -= 1
            if len(self._last_by_session) > MAX_ONGOING:
                self._leave(next(iter(self._last_by_session)))

    def pass_to(self, now: float) -> None:
        """Forget those without a report for so long that they are over."""
        since_s = now - MAX_GAPS * self._gap_s - MARGIN_S
        while self._last_by_session:
            session, last = next(iter(self._last_by_session.items()))
            if last.at_s >= since_s:
                break
            self._leave(session)

    def leave(self, home: Home) -> None:
        """It is gone, and its conversations are expected nowhere."""
        ended = [name for name, last in self._last_by_session.items() if last.home is home]
        for session in ended:
            self._leave(session)

    def _leave(self, session: str) -> _Last | None:
        last = self._last_by_session.pop(session, None)
        if last is not None:
            last.home.num_ongoing -= 1
        return last

    def _observe_work(self, work_s: float) -> None:
        self._num_long += 1
        if self._num_long <= NUM_FIRST:
            self._long_s = max(self._long_s, work_s)
        else:
            self._long_s *= exp(STEP * (LONG - (work_s <= self._long_s)))

    def _observe_prompt(self, now: float) -> None:
        if now <= self._sent_at_s:  # those of one moment count as one
            return
        self._num_sent += 1
        weight = max(WEIGHT, 1.0 / self._num_sent)
        self._between_s += (now - self._sent_at_s - self._between_s) * weight
        self._sent_at_s = now
