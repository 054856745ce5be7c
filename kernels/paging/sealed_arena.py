"""An arena of one layer whose blocks are sealed in 4 bits once they are full
(kernels/paging/seal.py).

    a request's tokens    | sealed | sealed | sealed | open ...        S tokens a block
    the token at t sees     in 4 bits, up to its block | its own block, up to itself, as computed

That is so whatever a pass computes: of a chunk of three blocks, the tokens of the third see the
second in 4 bits, and those of the second do not. So chunks, prefix hits and batches change nothing.

    units       [blocks][K][unit bytes]     the sealed ones; what an open block holds here is void
    open rows   [lanes][K][2][S][H]         of each request that runs: its open block, from pass to
                                            pass
    pass rows   [T + R (S - 1)][2][K][H]    of a layer, during a pass: the blocks it writes into, as
                                            computed. Of request r from query_starts[r] + r (S - 1)
                                            on: what its open block held before, its new tokens

Whoever takes over a request has its sealed blocks, and computes the tokens behind them again.

T new tokens of R requests, N query heads, K KV heads, H head width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from baton.kernels.attention.explicit_attention import explicit_attention
from baton.kernels.attention.scoring import Scoring
from baton.kernels.paging.quantized_arena import Arena
from baton.kernels.paging.seal import seal, unseal
from baton.kernels.paging.sequences import Sequences
from baton.kernels.paging.window import Window, first_seen, num_first_of


@dataclass(frozen=True, slots=True, eq=False)
class SealedArena:
    units: Tensor
    open_rows: Tensor
    pass_rows: Tensor

    @property
    def block_size(self) -> int:
        return self.open_rows.shape[3]

    @property
    def width(self) -> int:
        return self.open_rows.shape[4]

    def check(self, num_tokens: int, sequences: Sequences) -> None:
        """Raise ValueError for a pass that there is no room for."""
        num_rows = num_tokens + sequences.num_requests * (self.block_size - 1)
        num_lanes = len(self.open_rows)
        if num_rows > len(self.pass_rows) or sequences.num_requests > num_lanes:
            raise ValueError(
                f"{num_tokens} tokens of {sequences.num_requests} requests; there is room for "
                f"{len(self.pass_rows)} rows of {num_lanes} requests"
            )

    def write(self, kv: Tensor, sequences: Sequences) -> None:
        """Put the pass's kv [T, 2, K, H], without infinities, into its blocks; seal full ones."""
        self.check(len(kv), sequences)
        for part in self._parts(sequences):
            rows = part.rows
            open_rows = self.open_rows[part.lane].permute(2, 1, 0, 3)  # [S, 2, K, H]
            num_open = part.start - part.first
            rows[:num_open] = open_rows[:num_open]
            rows[num_open:] = kv[part.tokens]
            num_sealed = (part.end - part.first) // self.block_size
            end = num_sealed * self.block_size
            for place in range(num_sealed):
                block = rows[place * self.block_size : (place + 1) * self.block_size]
                seal(block.permute(2, 1, 0, 3), self.units[part.blocks[place]])
            open_rows[: len(rows) - end] = rows[end:]

    def attend(
        self,
        q: Tensor,
        sequences: Sequences,
        window: Window,
        scoring: Scoring,
        sinks: Tensor | None,
    ) -> Tensor:
        """What q [T, N, H] attends to, after `write`."""
        out = torch.empty_like(q)
        for part in self._parts(sequences):
            past = self._past(part, q.dtype)
            for begin in range(part.first, part.end, self.block_size):
                begins_at, end = max(begin, part.start), min(begin + self.block_size, part.end)
                own = part.rows[begin - part.first : end - part.first].permute(1, 2, 0, 3)
                k, v = torch.cat((past[:, :, :begin], own), dim=2).unsqueeze(1)
                first = part.tokens.start + begins_at - part.start
                tokens = slice(first, first + end - begins_at)
                queries = q[tokens].view(end - begins_at, k.shape[1], -1, self.width)
                queries = queries.permute(1, 2, 0, 3)
                bias = _bias(range(begins_at, end), window).to(q.device)
                found = explicit_attention(queries.unsqueeze(0), k, v, bias, scoring, sinks)
                out[tokens] = found[0].permute(2, 0, 1, 3).flatten(1, 2)
        return out

    def _past(self, part: _Part, dtype: torch.dtype) -> Tensor:
        """The blocks of a request before its last, sealed, as [2, K, tokens, H]."""
        units = self.units[part.table[: (part.end - 1) // self.block_size]]
        kv = unseal(units, self.block_size, self.width)  # [blocks, K, 2, S, H]
        return kv.to(dtype).permute(2, 1, 0, 3, 4).flatten(2, 3)

    def _parts(self, sequences: Sequences) -> Iterator[_Part]:
        token, lanes = 0, sequences.lanes
        assert lanes is not None, "open blocks have no place"
        for request, (query_len, context_len) in enumerate(sequences.lengths()):
            start = context_len - query_len
            first = start // self.block_size * self.block_size
            row = token + request * (self.block_size - 1)
            table = sequences.block_tables[request].tolist()
            yield _Part(
                tokens=slice(token, token + query_len),
                rows=self.pass_rows[row : row + context_len - first],
                first=first,
                start=start,
                end=context_len,
                lane=int(lanes[request]),
                table=table,
                blocks=table[first // self.block_size :],
            )
            token += query_len


AnyArena = Arena | SealedArena
"""Of one layer, however it is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """One request of a pass."""

    tokens: slice
    """Of the T."""
    rows: Tensor
    """[first .. end - 1, 2, K, H] of the pass rows."""
    first: int
    """Position where the block of the first new token begins."""
    start: int
    """Position of the first new token."""
    end: int
    lane: int
    table: list[int]
    blocks: list[int]
    """From that of the first new token on."""


def _bias(positions: range, window: Window) -> Tensor:
    """[Q, L] 0 or -inf, for queries at `positions` and keys from 0 to the last of them."""
    bias = torch.full((len(positions), positions.stop), -torch.inf)
    for row, position in enumerate(positions):
        bias[row, first_seen(window, position) : position + 1] = 0
        bias[row, : min(num_first_of(window), position + 1)] = 0
    return bias
