"""The state of replicas as columns of numbers, one row per replica, for policies to compute with.

    numbers    [Column, row]
    draws      [row]          mixed with a prompt's draw by rendezvous hashing
    line       waiting prompts: for which row, when each is due, how long it takes there
    ongoing    conversations that are expected to return to a row

The candidates write their own rows (`candidate.py`) whenever something happens to them. All
decaying values decay at one rate, so they are stored relative to one moment, `base_s`, and nothing
needs to be rewritten as time passes.
"""

from __future__ import annotations

import math
from enum import IntEnum, auto
from itertools import count
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from baton.kernels.routing.cost_terms_cpu import InLine, Rows
from baton.router.table.ongoing import Ongoing

Numbers: TypeAlias = NDArray[np.float64]
Places: TypeAlias = NDArray[np.intp]
Mask: TypeAlias = NDArray[np.bool_]
Draws: TypeAlias = NDArray[np.uint64]

RECENT_HALF_LIFE_S = 1200.0
MAX_HALF_LIVES = 200
"""Between two moments that are written as one: 2^200 times as much is still a number."""


class Column(IntEnum):
    """The numbers of a `candidate.Candidate`; seconds are of the gateway's clock."""

    NEXT_FREE_S = 0
    OLDEST_ENDS_S = auto()
    TOLD_UNTIL_S = auto()
    RECENT_S = auto()
    NUM_RECENT = auto()
    NUM_OPEN = auto()
    NUM_OPEN_TOKENS = auto()
    NUM_OPEN_BLOCKS = auto()
    CREDIT_TOKENS = auto()
    NUM_RUNNING = auto()
    LINE_S = auto()
    NUM_WAITING = auto()
    NUM_ONGOING = auto()
    STEP_S = auto()
    TOKEN_S = auto()
    PAIR_S = auto()
    MAX_CHUNK = auto()
    TOKENS_PER_S = auto()


def mean(numbers: Numbers) -> float:
    return float(np.add.reduce(numbers)) / len(numbers)


class Columns:
    def __init__(self, max_rows: int = 1) -> None:
        self.num_rows = 0
        self.version = self.books_version = self.pace_version = 0
        """Others after each change of its numbers, of those from NEXT_FREE_S, from STEP_S on."""
        self.base_s = 0.0
        self._lay(np.zeros((len(Column), max_rows)))
        self.rows = Rows(self._address, max_rows, 0)
        """The memory of the numbers."""
        self._draws = np.zeros(max_rows, np.uint64)
        self.draws_address = self._draws.ctypes.data
        self.line = LineColumns()
        self.ongoing = Ongoing()

    def _lay(self, numbers: Numbers) -> None:
        self._numbers, self._address = numbers, numbers.ctypes.data
        self._one_by_one = memoryview(numbers.reshape(-1).data).cast("B").cast("d")
        """The same end to end: for numpy to look at a tuple takes longer than to write it here."""

    @property
    def numbers(self) -> Numbers:
        return self._numbers[:, : self.num_rows]

    @property
    def draws(self) -> Draws:
        return self._draws[: self.num_rows]

    def add(self, draw: int) -> int:
        """A row more; its number."""
        row, max_rows = self.num_rows, len(self._draws)
        if row == max_rows:
            self._lay(np.pad(self._numbers, ((0, 0), (0, max_rows))))
            self._draws = np.pad(self._draws, (0, max_rows))
            self.draws_address = self._draws.ctypes.data
        self._resize(self.num_rows + 1)
        self._draws[row] = draw
        return row

    def remove(self, row: int) -> None:
        """Remove a row for which no prompt waits any more; the rows behind it move up."""
        self._numbers[:, row:-1] = self._numbers[:, row + 1 :]
        self._draws[row:-1] = self._draws[row + 1 :]
        self._resize(self.num_rows - 1)
        self.line.close_up(row)

    def _resize(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self.rows = Rows(self._address, len(self._draws), num_rows)
        self._have_changed()

    def write(self, row: int, first: Column, numbers: tuple[float, ...]) -> None:
        stride, one_by_one = self.rows.stride, self._one_by_one
        for place, number in enumerate(numbers, first):
            one_by_one[place * stride + row] = number
        self.version += 1
        if first is Column.NEXT_FREE_S:
            self.books_version += 1
        elif first is Column.STEP_S:
            self.pace_version += 1

    def put(self, row: int, column: Column, number: float) -> None:
        """Write one number that is neither of the books nor of the pace."""
        self._numbers[column, row] = number
        self.version += 1

    def write_pace(self, rows: Mask, pace: tuple[float, ...]) -> None:
        """Write the columns from STEP_S on, in all these rows."""
        self._numbers[Column.STEP_S :, : self.num_rows][:, rows] = np.array(pace)[:, None]
        self.version += 1
        self.pace_version += 1

    def growth(self, at_s: float) -> float:
        """The value at `base_s` of a decaying quantity that is 1 at `at_s`."""
        half_lives = (at_s - self.base_s) / RECENT_HALF_LIFE_S
        if half_lives > MAX_HALF_LIVES:
            self._numbers[Column.RECENT_S : Column.NUM_RECENT + 1] *= math.exp2(-half_lives)
            self.base_s, half_lives = at_s, 0.0
            self._have_changed()
        return math.exp2(half_lives)

    def _have_changed(self) -> None:
        self.version += 1
        self.books_version += 1
        self.pace_version += 1

    def left(self, now: float) -> float:
        """The present value of a decaying quantity that was 1 at `base_s`."""
        return math.exp2((self.base_s - now) / RECENT_HALF_LIFE_S)


class LineFacts(NamedTuple):
    """The constant facts of a waiting prompt."""

    number: int = 0
    """The prompt's number."""
    num_tokens: int = 0
    num_fetched: int = 0
    """Leading tokens that were to be fetched for it when it came."""
    names: int = 0
    """The address of its blocks' names, end to end,"""
    num_names: int = 0
    """and how many they are."""


NO_FACTS = LineFacts()


class LineColumns:
    """The prompts in line, in no order."""

    def __init__(self) -> None:
        self._row_by_key: dict[int, int] = {}
        self._keys: list[int] = []
        self._numbers = count()
        self._rows = np.zeros(16, np.intp)
        self._due_s, self._work_s = np.zeros(16), np.zeros(16)
        self._facts = np.zeros((len(NO_FACTS), 16), np.int64)
        self._at = self._find()

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def rows(self) -> Places:
        return self._rows[: len(self)]

    @property
    def due_s(self) -> Numbers:
        return self._due_s[: len(self)]

    @property
    def work_s(self) -> Numbers:
        return self._work_s[: len(self)]

    @property
    def addresses(self) -> InLine:
        """The addresses of the columns."""
        return InLine(*self._at[:3], len(self))

    @property
    def facts(self) -> Rows:
        """The memory of `LineFacts`, one row each."""
        return Rows(self._at[3], len(self._rows), len(self))

    def number(self, place: int) -> int:
        """The number of the prompt at a place."""
        return self._facts.item(0, place)

    def _find(self) -> tuple[int, int, int, int]:
        arrays = self._rows, self._due_s, self._work_s, self._facts
        rows, due_s, work_s, facts = (array.ctypes.data for array in arrays)
        return rows, due_s, work_s, facts

    def add(self, row: int, due_s: float, work_s: float, facts: LineFacts = NO_FACTS) -> int:
        """One more; the key to write or remove it by."""
        place, key = len(self), next(self._numbers)
        if place == len(self._rows):
            self._rows = np.pad(self._rows, (0, place))
            self._due_s, self._work_s = (
                np.pad(self._due_s, (0, place)),
                np.pad(self._work_s, (0, place)),
            )
            self._facts = np.pad(self._facts, ((0, 0), (0, place)))
            self._at = self._find()
        self._keys.append(key)
        self._row_by_key[key] = place
        self._rows[place], self._due_s[place], self._work_s[place] = row, due_s, work_s
        self._facts[:, place] = facts
        return key

    def write(self, key: int, due_s: float, work_s: float) -> None:
        place = self._row_by_key[key]
        self._due_s[place], self._work_s[place] = due_s, work_s

    def remove(self, key: int) -> None:
        """The last one takes its place."""
        place, last = self._row_by_key.pop(key), self._keys.pop()
        if last != key:
            self._keys[place] = last
            self._row_by_key[last] = place
            for column in (self._rows, self._due_s, self._work_s, self._facts.T):
                column[place] = column[len(self)]

    def close_up(self, row: int) -> None:
        """Account for a removed row, for which no prompt waits: the rows behind it are one less."""
        self._rows[self._rows > row] -= 1
