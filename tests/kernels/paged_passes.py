"""Passes over a paged cache in which only what belongs to a request may be read.

Slots that no token of a request has hold NaN, and tables go on with blocks that do not exist.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from tests.kernels.passes import sequences_of
from torch import Tensor

from baton.kernels.attention import paged_attention
from baton.kernels.attention.scoring_gpu import ScoringRules
from baton.kernels.paging.kv_quantize import dequantize, quantize
from baton.kernels.paging.quantized_arena import Arena, QuantizedArena
from baton.kernels.paging.sequences import Sequences

NOWHERE = 1 << 30
SCALE_BYTES = 4


@dataclass(frozen=True)
class Heads:
    query: int = 4
    kv: int = 2
    width: int = 8


@dataclass
class PagedPass:
    requests: Sequence[tuple[int, int]]
    """(query_len, context_len) of each"""
    heads: Heads = Heads()
    block_size: int = 4
    dtype: torch.dtype = torch.float32
    items: torch.dtype | None = None
    """Of a cache with scales."""
    rules: ScoringRules = field(default_factory=ScoringRules)
    device: str = "cpu"
    entries: torch.dtype = torch.int64
    """Of block tables."""

    tables: list[list[int]] = field(init=False)
    q: Tensor = field(init=False)
    kv: Tensor = field(init=False)
    """[blocks, K, 2, S, H], on the CPU, as it is written."""

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(7)
        num_blocks = sum(-(-context // self.block_size) for _, context in self.requests)
        order = iter(torch.randperm(num_blocks, generator=generator).tolist())
        self.tables = [
            [next(order) for _ in range(-(-context // self.block_size))]
            for _, context in self.requests
        ]
        num_tokens = sum(query_len for query_len, _ in self.requests)
        q = torch.randn(num_tokens, self.heads.query, self.heads.width, generator=generator)
        self.q = q.to(self.dtype).to(self.device)
        shape = num_blocks, self.heads.kv, 2, self.block_size, self.heads.width
        self.kv = torch.randn(shape, generator=generator).to(self.dtype)

    def arena(self) -> Arena:
        if self.items is not None:
            return self._quantized()
        arena = self.kv.clone()
        for table, (_, context_len) in zip(self.tables, self.requests, strict=True):
            used = context_len - (len(table) - 1) * self.block_size
            arena[table[-1], :, :, used:] = torch.nan
        return arena.to(self.device)

    def _quantized(self) -> QuantizedArena:
        assert self.items is not None
        blocks, kv_heads, _, block_size, width = self.kv.shape
        num_bytes = 2 * block_size * (width + SCALE_BYTES)
        units = torch.full((blocks, kv_heads, -(-num_bytes // 64) * 64), 0x7F, dtype=torch.uint8)
        arena = QuantizedArena(units, self.items, block_size, width)
        used = [
            (block, slot)
            for table, (_, context_len) in zip(self.tables, self.requests, strict=True)
            for place, block in enumerate(table)
            for slot in range(min(block_size, context_len - place * block_size))
        ]
        block, slot = torch.tensor(used).unbind(1)
        arena.write(block, slot, self.kv.permute(0, 3, 2, 1, 4)[block, slot])
        return replace(arena, units=units.to(self.device))

    def sequences(self) -> Sequences:
        made = sequences_of(self.tables, self.requests, block_size=self.block_size)
        for row, table in zip(made.block_tables, self.tables, strict=True):
            row[len(table) :] = NOWHERE
        made = replace(made, block_tables=made.block_tables.to(self.entries))
        if self.device == "cpu":
            return made
        names = ("positions", "query_starts", "context_lens", "block_tables")
        return replace(made, **{name: getattr(made, name).to(self.device) for name in names})

    def expected(self) -> Tensor:
        kv = self.kv
        if self.items is not None:
            kv = dequantize(*quantize(kv, self.items)).to(self.dtype)
        rules, sinks = self.rules, self.rules.sinks
        found = paged_attention.reference(
            self.q.cpu(),
            kv,
            [(t, *r) for t, r in zip(self.tables, self.requests, strict=True)],
            rules.window,
            rules.scoring,
            None if sinks is None else sinks.cpu(),
        )
        return found.to(self.device)
