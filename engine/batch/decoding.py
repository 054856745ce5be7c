"""One token of each of some requests, pass after pass: what a runner is given while nobody comes or
goes.

    row              0        1        2
    turn 0           t0 @ 17  t1 @ 5   t2 @ 31      token @ its position
    turn 1           t0'@ 18  t1'@ 6   t2'@ 32      row 2 has grown: a block for position 32

It is a sequence of chunks like any other. Who keeps what it made of the turn before sees by `turn`
that all positions moved on by one, and by `grown` whose block tables became longer.

A turn may begin before the host knows its tokens: they are then where they were drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from torch import Tensor

from baton.engine.batch.batch import Chunk


class Decoding(Sequence[Chunk]):
    """Changes from turn to turn; read it before the next."""

    def __init__(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        tables: Sequence[Sequence[int]],
        lanes: Sequence[int],
    ) -> None:
        """`tables` are the requests' own, and grow."""
        self.turn = 0
        self.tables = tables
        self.grown: Sequence[int] = ()
        """Rows whose tables have become longer since the turn before."""
        self.drawn: Tensor | None = None
        """[R] int64 The tokens on their device, if the host has not read them."""
        self._tokens: Sequence[int] | None = tokens
        self._first_positions = positions
        self._lanes = lanes

    @property
    def tokens(self) -> Sequence[int]:
        """The next of each row. Waits for the device if they are only there."""
        if self._tokens is None:
            assert self.drawn is not None
            self._tokens = self.drawn.tolist()
        return self._tokens

    def next_turn(self, tokens: Sequence[int] | Tensor, grown: Sequence[int]) -> None:
        self.turn += 1
        self.grown = grown
        if isinstance(tokens, Tensor):
            self._tokens, self.drawn = None, tokens
        else:
            self._tokens, self.drawn = tokens, None

    def position(self, row: int) -> int:
        """The position of the row's next token."""
        return self._first_positions[row] + self.turn

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
            start=self.position(row),
            blocks=self.tables[row],
            num_outputs=1,
            lane=self._lanes[row],
        )
