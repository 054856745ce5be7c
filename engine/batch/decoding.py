"""The input of decode passes over the same requests, one token each, pass after pass.

    row              0        1        2
    turn 0           t0 @ 17  t1 @ 5   t2 @ 31      token @ its position
    turn 1           t0'@ 18  t1'@ 6   t2'@ 32      row 2 has grown: it got a block for position 32

A runner may treat it as a sequence of chunks like any other. One that keeps the tensors of the turn
before can update them instead: from one `turn` to the next all positions advance by one, and
`grown` lists the rows whose block tables became longer.

A turn may begin before the host knows its tokens; they are then on the device, in `drawn`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from torch import Tensor

from baton.engine.batch.batch import Chunk


class Decoding(Sequence[Chunk]):
    """The chunks of the present turn; `next_turn` changes them in place."""

    def __init__(
        self,
        tokens: Sequence[int],
        positions: Sequence[int],
        tables: Sequence[Sequence[int]],
        open_slots: Sequence[int],
        adapters: Sequence[int] = (),
    ) -> None:
        """`tables` are the block tables of the requests themselves, which grow from turn to
        turn; `adapters` are empty if no request has one."""
        self.turn = 0
        self.tables = tables
        self.grown: Sequence[int] = ()
        """Rows whose tables have become longer since the turn before."""
        self.drawn: Tensor | None = None
        """The turn's tokens [R] int64 on the device, if the host has not read them."""
        self._tokens: Sequence[int] | None = tokens
        self._first_positions = positions
        self._open_slots = open_slots
        self._adapters = adapters

    @property
    def tokens(self) -> Sequence[int]:
        """The turn's token of each row. Waits for the device if they are only there."""
        if self._tokens is None:
            assert self.drawn is not None
            self._tokens = self.drawn.tolist()
        return self._tokens

    def next_turn(self, tokens: Sequence[int] | Tensor, grown: Sequence[int]) -> None:
        """Begin the next turn with `tokens` [R]; the block tables of rows `grown` are longer."""
        self.turn += 1
        self.grown = grown
        if isinstance(tokens, Tensor):
            self._tokens, self.drawn = None, tokens
        else:
            self._tokens, self.drawn = tokens, None

    def position(self, row: int) -> int:
        """The position of the row's token in this turn."""
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
            open_slot=self._open_slots[row],
            adapter=self._adapters[row] if self._adapters else 0,
        )
