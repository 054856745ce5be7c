"""One token of each of some requests, pass after pass: what a runner is given while nobody comes or
goes.

    row              0        1        2
    turn 0           t0 @ 17  t1 @ 5   t2 @ 31      token @ its position
    turn 1           t0'@ 18  t1'@ 6   t2'@ 32      row 2 has grown: a block for position 32

It is a sequence of chunks like any other. Who keeps what it made of the turn before sees by `turn`
that all positions moved on by one, and by `grown` whose block tables became longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from baton.engine.batch import Chunk


class Decoding(Sequence[Chunk]):
    """Changes from turn to turn; read it before the next."""

    def __init__(
        self, tokens: Sequence[int], positions: Sequence[int], tables: Sequence[Sequence[int]]
    ) -> None:
        """`tables` are the requests' own, and grow."""
        self.turn = 0
        self.tokens = tokens
        """The next of each row."""
        self.tables = tables
        self.grown: Sequence[int] = ()
        """Rows whose tables have become longer since the turn before."""
        self._first_positions = positions

    def next_turn(self, tokens: Sequence[int], grown: Sequence[int]) -> None:
        self.turn += 1
        self.tokens, self.grown = tokens, grown

    def __len__(self) -> int:
        return len(self.tables)

    @overload
    def __getitem__(self, row: int) -> Chunk: ...

    @overload
    def __getitem__(self, row: slice) -> Sequence[Chunk]: ...

    def __getitem__(self, row: int | slice) -> Chunk | Sequence[Chunk]:
        if isinstance(row, slice):
            return [self[each] for each in range(*row.indices(len(self)))]
        return Chunk(
            tokens=(self.tokens[row],),
            start=self._first_positions[row] + self.turn,
            blocks=self.tables[row],
            num_outputs=1,
        )
