"""How far a draft head has read one request: which pairs are in its KV, and which features wait.

    known tokens   a b c d e
    features       A B C D               the model's hidden states of a b c d
    pairs          (A b) (B c)           in the head's KV: `num_pairs`
    rows           C D                   joined features that have no pair there yet

A row is ready once its next token is known. Rows of rejected draft tokens are replaced. Tokens
without features are skipped: their pairs are missing, and those after them move up.
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
    """Pairs in full blocks that have their names in the prefix cache already."""
    skipped: int = 0
    """Number of missing tokens: a token's position minus the index of its pair in the head's KV."""
    num_rows: int = 0
    """Joined features that have no pair in the head's KV yet."""
    _pieces: list[Tensor] = field(init=False, default_factory=list)
    """The features, in pieces [n, D] that are concatenated on use: concatenating them in every
    step would take longer than drafting."""
    num_told: int = 0
    """Missing tokens that are in the drafter's count already."""
    is_nameable: bool = field(init=False, default=True)
    """Whether no token was skipped, so that the request's tokens name the content of its blocks."""

    @property
    def rows(self) -> Tensor:
        """Joined features [n, D] that have no pair in the head's KV yet."""
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
        """The position after the last of `rows`."""
        return self.position + self.num_rows

    def add(self, start: int, rows: Tensor) -> None:
        """Add the features [n, D] of the tokens from position `start` on. They replace features of
        rejected draft tokens at the same positions."""
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
        """Drop the features from position `end` on, which belong to draft tokens."""
        if self.num_rows:
            self.rows = self.rows[: max(0, end - self.position)]

    def drop(self, num_rows: int) -> None:
        """Drop the first `num_rows` features for good; their tokens count as missing."""
        self._skip(num_rows)
        self.rows = self.rows[num_rows:].clone()

    def _skip(self, num_tokens: int) -> None:
        self.skipped += num_tokens
        self.is_nameable = False

    def num_ready(self) -> int:
        """Features of known tokens whose next token is known, too."""
        return min(self.num_rows, len(self.request.tokens) - 1 - self.position)

    def chunk(
        self, num_rows: int, masks: Sequence[Mask], blocks: Sequence[int], num_outputs: int
    ) -> Chunk:
        """The chunk of a pass over the first `num_rows` features, followed by `masks`."""
        start = self.position + 1
        known = self.request.tokens[start : start + num_rows]
        return Chunk(
            tokens=[*known, *[mask.token for mask in masks]],
            start=self.num_pairs,
            blocks=blocks,
            num_outputs=num_outputs,
        )


def pair_salt(request: Request) -> bytes:
    """The salt of block names, including the first token: pairs are named by the tokens from the
    second on, so the first would be missing from the name."""
    return request.salt + request.tokens[0].to_bytes(8, "little")
