"""The replicas that may compute a prompt, as policies see them: a column of numbers for each fact.

    CandidateTable   all of them, updated by what happens to each (`candidate.py`)
      `- at(places) --> Candidates     some of them, as they are now

A policy is an expression over columns, so a thousand replicas cost little more than ten.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from baton.router.prompt import mix
from baton.router.replicas.candidate import LATE_S, Candidate, Speed
from baton.router.table.columns import Column, Columns, Draws, Mask, Numbers, Places, mean

PACE = tuple(Column)[Column.STEP_S :]
"""The columns of the fields of `candidate.Pace`."""


def works_s(
    pace: Iterable[Numbers | float], num_tokens: Numbers | int, num_cached: Numbers
) -> Numbers:
    """Seconds for prompts of `num_tokens`, by `Pace`: of one or many prompts, at one or many."""
    step_s, token_s, pair_s, max_chunk, tokens_per_s = pace
    num_new = num_tokens - np.minimum(num_cached, num_tokens - 1)
    pairs_s = num_new * -0.5
    pairs_s += num_tokens - 0.5
    pairs_s *= num_new
    pairs_s *= pair_s
    work_s: Numbers = num_new / max_chunk
    np.ceil(work_s, out=work_s)
    work_s *= step_s
    work_s += num_new * token_s
    work_s += pairs_s
    work_s += num_new / tokens_per_s
    return work_s


class Candidates:
    def __init__(
        self, every: Sequence[Candidate], columns: Columns, places: Places | None = None
    ) -> None:
        self._every = every
        self._columns = columns
        self._places = places
        """Rows of the columns; None: all, in their order."""
        self._numbers = columns.numbers if places is None else columns.numbers[:, places]
        self._busy_s: tuple[float, int, Numbers] | None = None
        self._recent: tuple[int, float, float] | None = None
        self._work_s: tuple[int, Numbers, int, Numbers] | None = None
        self._drawn: tuple[int, Draws] | None = None
        """The last query, for a version of the columns, and its answer: a policy and the record of
        its choice ask for the same."""

    @property
    def columns(self) -> Columns:
        """All that is known of all of the table's."""
        return self._columns

    @property
    def places(self) -> Places | None:
        """Rows of the columns; None: all, in their order."""
        return self._places

    def __len__(self) -> int:
        places = self._places
        return self._columns.num_rows if places is None else len(places)

    def __getitem__(self, place: int) -> Candidate:
        return self._every[place if self._places is None else self._places[place]]

    def __iter__(self) -> Iterator[Candidate]:
        return (
            iter(self._every) if self._places is None else map(self.__getitem__, range(len(self)))
        )

    def place(self, candidate: Candidate) -> int | None:
        """The candidate's place among these, if it has one."""
        if candidate.columns is not self._columns:
            return None
        if self._places is None:
            return candidate.row
        found = np.flatnonzero(self._places == candidate.row)
        return int(found[0]) if len(found) else None

    def at(self, places: Places) -> Candidates:
        """Some of these."""
        rows = places if self._places is None else self._places[places]
        return Candidates(self._every, self._columns, rows)

    @property
    def draws(self) -> Draws:
        draws = self._columns.draws
        return draws if self._places is None else draws[self._places]

    def _of(self, column: Column) -> Numbers:
        numbers: Numbers = self._numbers[column]
        return numbers

    @property
    def rows(self) -> Places:
        """The candidates' rows in the columns."""
        return np.arange(self._columns.num_rows) if self._places is None else self._places

    def drawn_by(self, draw: int) -> Draws:
        """Numbers that settle which of equals wins: the least."""
        if self._drawn is None or self._drawn[0] != draw:
            self._drawn = draw, mix(self.draws, draw)
        return self._drawn[1]

    @property
    def num_open(self) -> Numbers:
        """Prompts that were sent there and have no first token yet."""
        return self._of(Column.NUM_OPEN)

    @property
    def num_open_tokens(self) -> Numbers:
        """Tokens to compute of the prompts that each has open."""
        return self._of(Column.NUM_OPEN_TOKENS)

    @property
    def num_open_blocks(self) -> Numbers:
        return self._of(Column.NUM_OPEN_BLOCKS)

    @property
    def num_running(self) -> Numbers:
        """Requests that decode there, which a prompt holds up."""
        return self._of(Column.NUM_RUNNING)

    @property
    def has_credit(self) -> Mask:
        """Whether each accepts any prompts."""
        has_left: Mask = self.num_open_tokens < self._of(Column.CREDIT_TOKENS)
        is_idle: Mask = self.num_open == 0
        return has_left | is_idle

    def overdue_s(self, now: float) -> Numbers:
        """Seconds by which each one's oldest prompt is clearly overdue."""
        return np.maximum(now - self._of(Column.OLDEST_ENDS_S) - LATE_S, 0.0)

    def is_any_overdue(self, now: float, by_s: float) -> bool:
        """Whether one of them is for longer."""
        ends_s = self._of(Column.OLDEST_ENDS_S)
        return len(ends_s) > 0 and now - ends_s.item(ends_s.argmin()) - LATE_S > by_s

    def are_all_overdue(self, now: float, by_s: float) -> bool:
        """Whether each of them is for longer."""
        ends_s = self._of(Column.OLDEST_ENDS_S)
        return len(ends_s) == 0 or now - ends_s.item(ends_s.argmax()) - LATE_S > by_s

    def busy_s(self, now: float) -> Numbers:
        """Estimated seconds until each has computed the work sent to it."""
        asked, version = self._busy_s, self._columns.books_version
        if asked is None or asked[0] != now or asked[1] != version:
            next_free_s, ends_s, told_s = self._numbers[: Column.TOLD_UNTIL_S + 1] - now
            busy_s = np.maximum(next_free_s, 0.0, out=next_free_s)
            ends_s += LATE_S  # what is below zero now is what `overdue_s` says
            busy_s -= np.minimum(ends_s, 0.0, out=ends_s)
            np.maximum(busy_s, told_s, out=busy_s)
            asked = self._busy_s = now, version, busy_s
        return asked[2]

    @property
    def num_ongoing(self) -> Numbers:
        """Conversations whose next turn is expected there."""
        return self._of(Column.NUM_ONGOING)

    @property
    def recent_s(self) -> Numbers:
        """Seconds of work that each was sent lately, as the columns have it."""
        return self._of(Column.RECENT_S)

    @property
    def mean_num_ongoing(self) -> float:
        if self._places is None:
            return len(self._columns.ongoing) / self._columns.num_rows
        return mean(self.num_ongoing)

    def mean_recent(self, now: float) -> tuple[float, float]:
        """Seconds of work that one was sent lately, and prompts: older ones count less and less."""
        asked, version = self._recent, self._columns.books_version
        if asked is None or asked[0] != version:
            asked = self._recent = version, *self._mean_recent_units()
        left = self._columns.left(now)
        return asked[1] * left, asked[2] * left

    def _mean_recent_units(self) -> tuple[float, float]:
        """The same from the columns."""
        if self._places is not None:  # how these lie in memory, in which order they are added up
            return mean(self._of(Column.RECENT_S)), mean(self._of(Column.NUM_RECENT))
        sums = np.add.reduce(self._numbers[Column.RECENT_S : Column.NUM_RECENT + 1], axis=1)
        seconds, prompts = sums.tolist()
        return seconds / len(self), prompts / len(self)

    def prefill_s(self, num_tokens: int, num_cached: Numbers) -> Numbers:
        """Seconds for a prompt of `num_tokens` that each has to itself, by its own step times."""
        asked, version = self._work_s, self._columns.pace_version
        if (
            asked is None
            or asked[0] != num_tokens
            or asked[1] is not num_cached
            or asked[2] != version
        ):
            work_s = self._compute_s(num_tokens, num_cached)
            asked = self._work_s = num_tokens, num_cached, version, work_s
        return asked[3]

    def _compute_s(self, num_tokens: int, num_cached: Numbers) -> Numbers:
        return works_s(map(self._of, PACE), num_tokens, num_cached)

    # The lines before them.

    @property
    def has_lines(self) -> bool:
        """Whether any prompt waits for any candidate."""
        return len(self._columns.line) > 0

    @property
    def num_waiting(self) -> Numbers:
        return self._of(Column.NUM_WAITING)

    @property
    def mean_num_waiting(self) -> float:
        if self._places is None:
            return len(self._columns.line) / self._columns.num_rows
        return mean(self.num_waiting)

    @property
    def line_s(self) -> Numbers:
        """Work of all in line."""
        return self._of(Column.LINE_S)

    def ahead(self, due_s: Numbers) -> tuple[Numbers, Numbers]:
        """Work of those in each line that go before one that is due then, and how many go after."""
        line = self._columns.line
        if not len(line):
            return (nothing := np.zeros(len(self))), nothing
        places = line.rows if self._places is None else self._place_by_row[line.rows]
        goes_before = line.due_s <= due_s.take(places)
        if self._places is not None:
            goes_before &= places >= 0
            places = np.maximum(places, 0)
        ahead_s = np.bincount(places, np.where(goes_before, line.work_s, 0.0), len(self))
        num_ahead = np.bincount(places, goes_before.astype(float), len(self))
        return ahead_s.astype(float, copy=False), self.num_waiting - num_ahead

    @property
    def _place_by_row(self) -> Places:
        """-1 where a row is not among these."""
        places = np.full(self._columns.num_rows, -1)
        places[self._places] = np.arange(len(self))
        return places


class CandidateTable:
    def __init__(self, candidates: Iterable[Candidate] = ()) -> None:
        self._columns = Columns()
        self._candidates: list[Candidate] = []
        self._all: Candidates | None = None
        for candidate in candidates:
            self.add(candidate)

    def __len__(self) -> int:
        return len(self._candidates)

    def __contains__(self, candidate: Candidate) -> bool:
        return candidate.columns is self._columns

    @property
    def all(self) -> Candidates:
        """All candidates: one and the same object until a replica comes or goes."""
        if self._all is None:
            self._all = Candidates(self._candidates, self._columns)
        return self._all

    @property
    def version(self) -> int:
        """Another one after each change of what is known of any."""
        return self._columns.version

    def at(self, places: Places) -> Candidates:
        return Candidates(self._candidates, self._columns, places)

    def add(self, candidate: Candidate) -> None:
        candidate.join(self._columns)
        self._candidates.append(candidate)
        self._all = None

    def observe_pace(self, speed: Speed) -> None:
        """`speed`, which several may share, is another by now."""
        shares = np.fromiter((one.speed is speed for one in self._candidates), bool, len(self))
        if shares.any():
            self._columns.write_pace(shares, speed.pace)

    def remove(self, candidate: Candidate) -> None:
        """It stands by itself again, with its books and its line."""
        row = candidate.row
        candidate.join(Columns())
        self._columns.remove(row)
        del self._candidates[row]
        self._all = None
        for behind in self._candidates[row:]:
            behind.row -= 1
