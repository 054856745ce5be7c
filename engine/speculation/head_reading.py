"""How far a draft head has read one request: which pairs are in its KV, and which features wait.

    known tokens   a b c d e
    features       A B C D               what the model computed of them
    pairs          (A b) (B c)           in the head's KV, `num_pairs`
    rows           C D                   joined features that have no pair there yet

A row is ready once the token behind it is known. Rows of drafts are replaced by those of the tokens
that were drawn. Tokens that the head is never shown are skipped: their pairs are missing, and the
others move up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from baton.engine.batch.batch import Chunk
from baton.engine.models.heads.draft_head import Mask
from baton.engine.request.request import Request


@dataclass(slots=True, eq=False)
class HeadReading:
    request: Request
    num_pairs: int
    """Pairs of verified tokens in the head's KV."""
    num_named: int
    """Pairs of these whose blocks have names, so that other prompts find them."""
    skipped: int = 0
    """The position of a token less the place of its pair: so many tokens are missing."""
    num_rows: int = 0
    """Joined features that have no pair in its KV yet."""
    _pieces: list[Tensor] = field(init=False, default_factory=list)
    """The rows in pieces, joined only when they are read: joining them in each step would take
    longer than to draft."""
    num_told: int = 0
    """Missing tokens that have been counted already."""
    is_nameable: bool = field(init=False, default=True)
    """Whether no token was skipped, so that the tokens name the head's KV."""

    @property
    def rows(self) -> Tensor:
        """[n, D] Joined features that have no pair yet."""
        if len(self._pieces) != 1:
            self._pieces = [torch.cat(self._pieces)]
        return self._pieces[0]

    @rows.setter
    def rows(self, rows: Tensor) -> None:
        self._pieces, self.num_rows = [rows], len(rows)

    @property
    def position(self) -> int:
        """Position of the first of `rows`."""
        return self.skipped + self.num_pairs

    @property
    def end(self) -> int:
        """The position behind the last of `rows`."""
        return self.position + self.num_rows

    def add(self, start: int, rows: Tensor) -> None:
        """Add the features [n, D] of the tokens from `start` on, in the place of those of
        drafts."""
        first = self.position
        if start == self.end:
            self._pieces.append(rows)
            self.num_rows += len(rows)
        elif start > self.end:
            self._skip(start - first)
            self.rows = rows
        elif start >= first:
            self.rows = torch.cat((self.rows[: start - first], rows))
        elif start + len(rows) > first:
            self.rows = rows[first - start :]

    def cut(self, end: int) -> None:
        """Drop the rows from position `end` on: they are of drafts."""
        if self.num_rows:
            self.rows = self.rows[: max(0, end - self.position)]

    def drop(self, num_rows: int) -> None:
        """Drop the first rows for good: their tokens are skipped."""
        self._skip(num_rows)
        self.rows = self.rows[num_rows:].clone()

    def _skip(self, num_tokens: int) -> None:
        self.skipped += num_tokens
        self.is_nameable = False

    def num_ready(self) -> int:
        """Rows of known tokens with a known one behind them."""
        return min(self.num_rows, len(self.request.tokens) - 1 - self.position)

    def chunk(
        self, num_rows: int, masks: Sequence[Mask], blocks: Sequence[int], num_outputs: int
    ) -> Chunk:
        """The pass over the first rows, with `masks` behind them."""
        start = self.position + 1
        known = self.request.tokens[start : start + num_rows]
        return Chunk(
            tokens=[*known, *[mask.token for mask in masks]],
            start=self.num_pairs,
            blocks=blocks,
            num_outputs=num_outputs,
        )


def pair_salt(request: Request) -> bytes:
    """The salt of the names of a request's pairs, which are hashes of its tokens from the second
    on: the first token is in the salt."""
    return request.salt + request.tokens[0].to_bytes(8, "little")
