"""A replica that computes prompts, as a router knows it from one moment to the next.

    book(prompt) --> open, in order --> finished(prompt)      the first token is there
                     |
                     next_free_s     when the last of them should be over, by prediction

It is kept up by events and never rebuilt. What was predicted too low or too high moves the rest of
the line at the event that shows it; a replica that is overdue counts as busy for as long again.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from baton.core.ids import Epoch
from baton.router.prompt import Prompt, drawn

LATE_S = 0.1
"""A prediction that is off by less says nothing of the replica."""

PACE_TOKENS = 512

RECENT_HALF_LIFE_S = 600.0


class Speed(Protocol):
    """How long a replica computes a prompt that has it to itself (`speed.py`)."""

    @property
    def is_measured(self) -> bool:
        """Whether that was learnt from the replica itself."""

    def prefill_s(self, num_tokens: int, num_cached: int) -> float:
        """Seconds for a prompt of `num_tokens`, of which it has the first `num_cached`."""


@dataclass(slots=True)
class Booking:
    """A prompt that was sent there and has no first token yet."""

    prompt: Prompt
    num_new_tokens: int
    """That were expected to be computed."""
    work_s: float
    ends_s: float
    """Predicted, with the corrections made until then taken out."""


@dataclass(slots=True, eq=False)
class Waiting:
    """A prompt in the gateway's line that means to go to one candidate, until it is sent."""

    prompt: Prompt
    candidate: Candidate
    work_s: float
    due_s: float
    """Its place in line: the smallest goes first."""

    @property
    def order(self) -> tuple[float, int]:
        return self.due_s, self.prompt.number


@dataclass(slots=True, eq=False)
class Candidate:
    name: str
    speed: Speed
    epoch: Epoch | None = None
    """Which incarnation of it."""
    draw: int = 0
    """What rendezvous hashing mixes with a prompt's; made of the name if it is 0."""
    open: dict[int, Booking] = field(default_factory=dict)
    """By the prompt's number, in the order in which they were sent."""
    num_open_tokens: int = 0
    num_open_blocks: int = 0
    next_free_s: float = 0.0
    corrected_s: float = 0.0
    """By how much later than predicted first tokens came, all in all."""
    credit_tokens: int | None = 0
    """Tokens that it has lent this gateway: more are not sent, unless it has none open at all.
    None: it lends nothing, and takes all."""
    num_running: int = 0
    """Requests that decode there, which a prompt holds up."""
    waiting: list[Waiting] = field(default_factory=list)
    """In order."""
    _told_s: float = 0.0
    _told_at_s: float = 0.0
    _recent_s: float = 0.0
    _num_recent: float = 0.0
    _recent_at_s: float = 0.0

    def __post_init__(self) -> None:
        self.draw = self.draw or drawn(self.name)

    def recent(self, now: float) -> tuple[float, float]:
        """Seconds of work that it was sent lately, and prompts: older ones count less and less."""
        left = math.exp2((self._recent_at_s - now) / RECENT_HALF_LIFE_S)
        return self._recent_s * left, self._num_recent * left

    def busy_s(self, now: float) -> float:
        """Seconds until it has computed what was sent there, as far as can be told."""
        told_s = max(self._told_s - (now - self._told_at_s), 0.0)
        if not self.open:
            return told_s
        return max(max(self.next_free_s - now, 0.0) + self.overdue_s(now), told_s)

    def hear(self, num_queued_tokens: int, num_running: int, now: float) -> None:
        """Its own word of what it has to compute, for all gateways, and of who decodes there.

        The tokens are of prompts of unknown lengths: they are taken at the pace of a short one.
        """
        self._told_s = num_queued_tokens * self.speed.prefill_s(PACE_TOKENS, 0) / PACE_TOKENS
        self._told_at_s = now
        self.num_running = num_running

    def overdue_s(self, now: float) -> float:
        """For how long its oldest prompt should have been over, clearly."""
        oldest = next(iter(self.open.values()), None)
        return 0.0 if oldest is None else max(now - self._ends_s(oldest) - LATE_S, 0.0)

    @property
    def has_credit(self) -> bool:
        """Whether it takes anybody at all."""
        return (
            self.credit_tokens is None or not self.open or self.num_open_tokens < self.credit_tokens
        )

    def takes(self, prompt: Prompt, num_cached: int) -> bool:
        """Whether it has credit for `prompt`; one that is larger than any goes when it is idle."""
        if self.credit_tokens is None or not self.open:
            return True
        num_new_tokens = prompt.num_tokens - num_cached
        return self.num_open_tokens + num_new_tokens <= self.credit_tokens

    def book(self, prompt: Prompt, num_cached: int, now: float) -> Booking:
        """`prompt` is sent there, of which it should have `num_cached` tokens."""
        work_s = self.speed.prefill_s(prompt.num_tokens, num_cached)
        self.next_free_s = max(self.next_free_s, now) if self.open else now
        self.next_free_s += work_s
        num_new_tokens = prompt.num_tokens - num_cached
        booking = Booking(prompt, num_new_tokens, work_s, self.next_free_s - self.corrected_s)
        self._recent_s, num_recent = self.recent(now)
        self._recent_s += work_s
        self._num_recent = num_recent + 1.0
        self._recent_at_s = now
        self.open[prompt.number] = booking
        self.num_open_tokens += booking.num_new_tokens
        self.num_open_blocks += prompt.num_blocks
        return booking

    def finished(self, prompt: Prompt, now: float) -> Booking | None:
        """Its first token is there, or it was taken back. None if that is known already."""
        booking = self.open.get(prompt.number)
        if booking is None:
            return None
        is_oldest = booking is next(iter(self.open.values()))
        del self.open[prompt.number]
        self.num_open_tokens -= booking.num_new_tokens
        self.num_open_blocks -= prompt.num_blocks
        if is_oldest:
            later_s = now - self._ends_s(booking)
            self.next_free_s += later_s
            self.corrected_s += later_s
        else:  # taken back, or computed beside others: those behind it come so much sooner
            self.next_free_s -= booking.work_s
            for behind in self.open.values():
                if behind.ends_s > booking.ends_s:
                    behind.ends_s -= booking.work_s
        return booking

    def until_s(self, booking: Booking, now: float) -> float:
        """To the first token of one of `open`, by prediction."""
        return max(self._ends_s(booking) - now, 0.0)

    def _ends_s(self, booking: Booking) -> float:
        return booking.ends_s + self.corrected_s

    # The line before it.

    @property
    def line_s(self) -> float:
        """Work of all in line."""
        return sum(one.work_s for one in self.waiting)

    def ahead_s(self, due_s: float) -> float:
        """Work of those in line that go before one that is due then."""
        place = bisect_right(self.waiting, due_s, key=lambda one: one.due_s)
        return sum(one.work_s for one in islice(self.waiting, place))

    def num_behind(self, due_s: float) -> int:
        return len(self.waiting) - bisect_right(self.waiting, due_s, key=lambda one: one.due_s)

    def add(self, waiting: Waiting) -> None:
        insort(self.waiting, waiting, key=lambda one: one.order)

    def remove(self, waiting: Waiting) -> None:
        place = bisect_left(self.waiting, waiting.order, key=lambda one: one.order)
        if place == len(self.waiting) or self.waiting[place] is not waiting:
            raise KeyError(f"{waiting.prompt.number} does not wait for {self.name}")
        del self.waiting[place]

    def sort(self) -> None:
        """After the dues of those who wait have changed."""
        self.waiting.sort(key=lambda one: one.order)

    def __iter__(self) -> Iterator[Waiting]:
        return iter(tuple(self.waiting))
