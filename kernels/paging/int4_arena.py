"""An int4 arena of one layer, whose blocks are quantized once full (kernels/paging/int4_block.py).

    a request's tokens    | 4 bit  | 4 bit  | 4 bit  | open ...        S tokens a block
    the token at t sees     4-bit blocks before its own | its own block, up to itself, unquantized

This holds within a pass, too: in a chunk of three blocks, tokens of the third read the second in 4
bits, and tokens of the second do not. So results do not depend on chunks, prefix hits or batches.

    units       [blocks][K][unit bytes]     full blocks; the unit of an open block is undefined
    open rows   [slots][O][K][2][S][H]      the last blocks of each running request, kept between
                                            passes; block b at b % O
    pass rows   [T + R (S - 1)][2][K][H]    the unquantized blocks that a layer writes during a
                                            pass. Of request r from query_starts[r] + r (S - 1) on:
                                            what its open block held before, then its new tokens

A pass may begin before the end of the previous one, after drafts that were wrong: what it
overwrites may be in the last O blocks. A full one of them is quantized again, from other rows;
until then its 4-bit form is not read.

A replica that takes over a request gets its full blocks, and recomputes the tokens after them.

T new tokens of R requests, N query heads, K KV heads, H head width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from baton.kernels.paging.int4_block import quantize_block
from baton.kernels.paging.quantized_arena import Arena
from baton.kernels.paging.sequences import Sequences


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestPart:
    """One request of a pass."""

    tokens: slice
    """The request's tokens among the T of the pass."""
    rows: Tensor
    """[end - first, 2, K, H]: its pass rows."""
    first: int
    """Position at which the block of the first new token begins."""
    start: int
    """Position of the first new token."""
    end: int
    open_slot: int
    table: list[int]
    blocks: list[int]
    """Its blocks, from that of the first new token on."""


@dataclass(frozen=True, slots=True, eq=False)
class Int4Arena:
    units: Tensor
    open_rows: Tensor
    pass_rows: Tensor

    @property
    def block_size(self) -> int:
        return self.open_rows.shape[4]

    @property
    def width(self) -> int:
        return self.open_rows.shape[5]

    @property
    def num_open(self) -> int:
        """O"""
        return self.open_rows.shape[1]

    def check(self, num_tokens: int, sequences: Sequences) -> None:
        """Raise ValueError if the pass is too large."""
        num_rows = num_tokens + sequences.num_requests * (self.block_size - 1)
        num_slots = len(self.open_rows)
        if num_rows > len(self.pass_rows) or sequences.num_requests > num_slots:
            raise ValueError(
                f"{num_tokens} tokens of {sequences.num_requests} requests; there is room for "
                f"{len(self.pass_rows)} rows of {num_slots} requests"
            )

    def write(self, kv: Tensor, sequences: Sequences) -> None:
        """Write the pass's kv [T, 2, K, H], without infinities, to its blocks; quantize full
        ones."""
        self.check(len(kv), sequences)
        size = self.block_size
        for part in self.parts(sequences):
            rows = part.rows
            num_before = part.start - part.first
            rows[:num_before] = self._open_block(part, 0)[:num_before]
            rows[num_before:] = kv[part.tokens]
            blocks = torch.split(rows, size)
            for place, block in enumerate(blocks):
                if len(block) == size:
                    quantize_block(block.permute(2, 1, 0, 3), self.units[part.blocks[place]])
                if place + self.num_open >= len(blocks):
                    self._open_block(part, place)[: len(block)] = block

    def _open_block(self, part: RequestPart, place: int) -> Tensor:
        """[S, 2, K, H] The open rows of a block of the pass."""
        block = part.first // self.block_size + place
        return self.open_rows[part.open_slot, block % self.num_open].permute(2, 1, 0, 3)

    def parts(self, sequences: Sequences) -> Iterator[RequestPart]:
        """The requests in the order of the pass."""
        token, open_slots = 0, sequences.open_slots
        assert open_slots is not None, "the pass has no slots for open blocks"
        for request, (query_len, context_len) in enumerate(sequences.lengths()):
            start = context_len - query_len
            first = start // self.block_size * self.block_size
            row = token + request * (self.block_size - 1)
            table = sequences.block_tables[request].tolist()
            yield RequestPart(
                tokens=slice(token, token + query_len),
                rows=self.pass_rows[row : row + context_len - first],
                first=first,
                start=start,
                end=context_len,
                open_slot=int(open_slots[request]),
                table=table,
                blocks=table[first // self.block_size :],
            )
            token += query_len


AnyArena = Arena | Int4Arena
"""The KV of one layer in any format."""
