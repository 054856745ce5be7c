"""A replica that computes prompts, as the router knows it at each moment.

    book(prompt) --> open, in order --> finished(prompt)      the first token is there
                     |
                     next_free_s     when the last of them should be over, by prediction

It is updated by events and never rebuilt. A prediction that was too low or too high moves the rest
of the line at the event that shows it; an overdue replica counts as busy for as long again.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from baton.core.block_hash import DIGEST_BYTES, BlockNames
from baton.core.ids import Epoch
from baton.kernels.routing.addresses import bytes_address
from baton.router.prompt import Prompt, drawn
from baton.router.speeds.coefficients import SpeedCoefficients
from baton.router.table.columns import (
    RECENT_HALF_LIFE_S,
    Column,
    Columns,
    LineColumns,
    LineFacts,
    mean,
)

LATE_S = 0.1
"""A prediction that is off by less says nothing of the replica."""

PACE_TOKENS = 512


class Speed(Protocol):
    """How long a replica computes a prompt that has it to itself (`speed.py`)."""

    @property
    def is_measured(self) -> bool:
        """Whether that was learnt from the replica itself."""

    @property
    def pace(self) -> SpeedCoefficients:
        """The speed in numbers, to be applied to many replicas at once (`candidates.py`)."""

    def prefill_s(self, num_tokens: int, num_cached: int) -> float:
        """Seconds for a prompt of `num_tokens`, of which it has the first `num_cached`."""


@dataclass(slots=True)
class Booking:
    """A prompt that was sent there and has no first token yet."""

    prompt: Prompt
    num_new_tokens: int
    """Tokens that were expected to be computed."""
    work_s: float
    ends_s: float
    """Predicted, with the corrections made until then taken out."""
    others_s: float
    """Seconds of that which other gateways' prompts before it were expected to take."""


@dataclass(slots=True, eq=False)
class Waiting:
    """A prompt in the gateway's line that means to go to one candidate, until it is sent."""

    prompt: Prompt
    candidate: Candidate
    work_s: float
    due_s: float
    """Its place in line: the smallest goes first."""
    num_fetched: int = 0
    """Leading tokens that were to be fetched for it when it came; 0: none."""
    key: int = -1
    """The key of this prompt in its candidate's columns; -1: none yet."""

    @property
    def order(self) -> tuple[float, int]:
        return self.due_s, self.prompt.number

    def enter(self, line: LineColumns, row: int) -> None:
        """Stand in these columns from now on, for the replica of a row."""
        prompt, names = self.prompt, self.prompt.names
        packed = names.packed if isinstance(names, BlockNames) else b""  # else nobody looks it up
        at = bytes_address(packed), len(packed) // DIGEST_BYTES
        facts = LineFacts(prompt.number, prompt.num_tokens, self.num_fetched, *at)
        self.key = line.add(row, self.due_s, self.work_s, facts)


class Candidate:
    """Its books. Whatever changes in them is written into its row (`columns.py`)."""

    def __init__(
        self,
        name: str,
        speed: Speed,
        *,
        epoch: Epoch | None = None,
        credit_tokens: int | None = 0,
        corrected_s: float = 0.0,
    ) -> None:
        self.name = name
        self.epoch = epoch
        """Which incarnation of it."""
        self.draw = drawn(name)
        """Mixed with a prompt's draw by rendezvous hashing."""
        self.open: dict[int, Booking] = {}
        """Prompts sent and without a first token, by number, in the order in which they were
        sent."""
        self.num_open_tokens = 0
        self.num_open_blocks = 0
        self.next_free_s = 0.0
        self.corrected_s = corrected_s
        """Seconds by which first tokens came later than predicted, all in all."""
        self.waiting: list[Waiting] = []
        """Prompts in line for this replica, in order."""
        self.works_s: list[float] = []
        """Seconds of work of each of them."""
        self.line_s = 0.0
        """and all of them."""
        self.version = 0
        """The version of its books: another number after each change."""
        self.last_offer = -1, -math.inf
        """Version and time when prompts of other lines were offered to it and none was better off
        here (`prefill_queue.py`)."""
        self._speed = speed
        self._credit_tokens = credit_tokens
        self._num_running = 0
        self._num_ongoing = 0
        self._told_until_s = -math.inf
        self._last_first_token_s = -math.inf
        """When a prompt was over there."""
        self._recent_s = self._num_recent = self._recent_at_s = 0.0
        self.columns = Columns()
        self.join(self.columns)

    def join(self, columns: Columns) -> None:
        """Have its row there from now on, behind all others.

        One that is new counts as if it had been sent as much as they were: it need not catch up.
        """
        if columns.num_rows and not self._num_recent:
            self._recent_at_s = columns.base_s
            self._recent_s = mean(columns.numbers[Column.RECENT_S])
            self._num_recent = mean(columns.numbers[Column.NUM_RECENT])
        for waiting in self.waiting:
            self.columns.line.remove(waiting.key)
        self.columns.ongoing.leave(self)
        self.columns, self.row = columns, columns.add(self.draw)
        for waiting in self.waiting:
            waiting.enter(columns.line, self.row)
        self._write()
        self._write_line()
        self.num_ongoing = 0
        self.columns.write(self.row, Column.STEP_S, self._speed.pace)

    @property
    def speed(self) -> Speed:
        return self._speed

    @speed.setter
    def speed(self, speed: Speed) -> None:
        self._speed = speed
        self.columns.write(self.row, Column.STEP_S, speed.pace)

    @property
    def credit_tokens(self) -> int | None:
        """Tokens that it has lent this gateway: more are not sent, unless it has none open at all.
        None: it lends nothing, and takes all."""
        return self._credit_tokens

    @credit_tokens.setter
    def credit_tokens(self, credit_tokens: int | None) -> None:
        self._credit_tokens = credit_tokens
        self._write()

    @property
    def num_running(self) -> int:
        """Requests that decode there, which a prompt holds up."""
        return self._num_running

    @num_running.setter
    def num_running(self, num_running: int) -> None:
        self._num_running = num_running
        self._write()

    @property
    def num_ongoing(self) -> int:
        """Conversations whose next turn is expected here."""
        return self._num_ongoing

    @num_ongoing.setter
    def num_ongoing(self, num_ongoing: int) -> None:
        self._num_ongoing = num_ongoing
        self.columns.put(self.row, Column.NUM_ONGOING, num_ongoing)

    def recent(self, now: float) -> tuple[float, float]:
        """Seconds of work that it was sent lately, and prompts: older ones count less and less."""
        left = math.exp2((self._recent_at_s - now) / RECENT_HALF_LIFE_S)
        return self._recent_s * left, self._num_recent * left

    def busy_s(self, now: float) -> float:
        """Estimated seconds until it has computed the work sent to it."""
        told_s = max(self._told_until_s - now, 0.0)
        if not self.open:
            return told_s
        return max(max(self.next_free_s - now, 0.0) + self.overdue_s(now), told_s)

    def observe(self, num_queued_tokens: int, num_running: int, now: float) -> None:
        """Its own report of what it has to compute, for all gateways, and of what decodes there.

        The tokens are of prompts of unknown lengths: they are taken at the pace of a short one.
        """
        told_s = num_queued_tokens * self.speed.prefill_s(PACE_TOKENS, 0) / PACE_TOKENS
        self._told_until_s = now + told_s
        self._num_running = num_running
        self._write()

    def overdue_s(self, now: float) -> float:
        """Seconds by which a first token is clearly overdue: its oldest prompt may be held up
        elsewhere while others' come."""
        return max(now - self._token_due_s - LATE_S, 0.0)

    @property
    def _token_due_s(self) -> float:
        for oldest in self.open.values():
            return max(self._ends_s(oldest), self._last_first_token_s)
        return math.inf

    @property
    def has_credit(self) -> bool:
        """Whether it accepts any prompts."""
        return self.takes_any_prompt or self.num_open_tokens < (self._credit_tokens or 0)

    @property
    def takes_any_prompt(self) -> bool:
        """Whether it accepts the next prompt, however long that is."""
        return self._credit_tokens is None or not self.open

    def takes(self, prompt: Prompt, num_cached: int) -> bool:
        """Whether it has credit for `prompt`; one that is larger than any goes when it is idle."""
        num_new_tokens = prompt.num_tokens - num_cached
        credit_tokens = self._credit_tokens or 0
        return self.takes_any_prompt or self.num_open_tokens + num_new_tokens <= credit_tokens

    def book(self, prompt: Prompt, num_cached: int, now: float) -> Booking:
        """`prompt` is sent there, of which it should have `num_cached` tokens."""
        work_s = self.speed.prefill_s(prompt.num_tokens, num_cached)
        begins_s = max(self.next_free_s, now) if self.open else now
        others_s = max(self._told_until_s - begins_s, 0.0)
        self.next_free_s = begins_s + others_s + work_s
        num_new_tokens = prompt.num_tokens - num_cached
        ends_s = self.next_free_s - self.corrected_s
        booking = Booking(prompt, num_new_tokens, work_s, ends_s, others_s)
        self._recent_s, num_recent = self.recent(now)
        self._recent_s += work_s
        self._num_recent = num_recent + 1.0
        self._recent_at_s = now
        self.open[prompt.number] = booking
        self.num_open_tokens += booking.num_new_tokens
        self.num_open_blocks += prompt.num_blocks
        self._write()
        begins = prompt.is_first_turn
        self.columns.ongoing.add_turn(prompt.session, self, work_s, now, begins=begins)
        return booking

    def finished(
        self, prompt: Prompt, now: float, *, is_taken_back: bool = False
    ) -> Booking | None:
        """Its first token is there, or it was taken back. None if that is known already."""
        booking = self.open.get(prompt.number)
        if booking is None:
            return None
        if not is_taken_back:
            self._last_first_token_s = now
        is_oldest = booking is next(iter(self.open.values()))
        del self.open[prompt.number]
        self.num_open_tokens -= booking.num_new_tokens
        self.num_open_blocks -= prompt.num_blocks
        if is_oldest:
            later_s = now - self._ends_s(booking)
            self.next_free_s += later_s
            self.corrected_s += later_s
        else:  # taken back, or computed beside others: those behind it come so much sooner
            sooner_s = booking.work_s if is_taken_back else booking.work_s + booking.others_s
            self.next_free_s -= sooner_s
            for behind in self.open.values():
                if behind.ends_s > booking.ends_s:
                    behind.ends_s -= sooner_s
        self._write()
        return booking

    def until_s(self, booking: Booking, now: float) -> float:
        """Seconds to the first token of one of `open`, by prediction."""
        return max(self._ends_s(booking) - now, 0.0)

    def _ends_s(self, booking: Booking) -> float:
        return booking.ends_s + self.corrected_s

    # The line before it.

    def ahead_s(self, due_s: float) -> float:
        """Work of those in line that go before one that is due then."""
        place = bisect_right(self.waiting, due_s, key=lambda one: one.due_s)
        return sum(one.work_s for one in islice(self.waiting, place))

    def add(self, waiting: Waiting) -> None:
        insort(self.waiting, waiting, key=lambda one: one.order)
        waiting.enter(self.columns.line, self.row)
        self._write_line()

    def remove(self, waiting: Waiting) -> None:
        place = bisect_left(self.waiting, waiting.order, key=lambda one: one.order)
        if place == len(self.waiting) or self.waiting[place] is not waiting:
            raise KeyError(f"{waiting.prompt.number} does not wait for {self.name}")
        del self.waiting[place]
        self.columns.line.remove(waiting.key)
        self._write_line()

    def sort(self) -> None:
        """Put the line in order after dues of prompts in it have changed."""
        self.waiting.sort(key=lambda one: one.order)
        for waiting in self.waiting:
            self.columns.line.write(waiting.key, waiting.due_s, waiting.work_s)
        self._write_line()

    def _write_line(self) -> None:
        self.works_s = [one.work_s for one in self.waiting]
        self.line_s = sum(self.works_s)
        self.columns.write(self.row, Column.LINE_S, (self.line_s, len(self.waiting)))

    def _write(self) -> None:
        self.version += 1
        growth = self.columns.growth(self._recent_at_s) if self._num_recent else 1.0
        self.columns.write(
            self.row,
            Column.NEXT_FREE_S,
            (
                self.next_free_s if self.open else -math.inf,
                self._token_due_s,
                self._told_until_s,
                self._recent_s * growth,
                self._num_recent * growth,
                len(self.open),
                self.num_open_tokens,
                self.num_open_blocks,
                math.inf if self._credit_tokens is None else self._credit_tokens,
                self._num_running,
            ),
        )
