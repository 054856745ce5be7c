"""Draft features stored with the KV: one row per computed token, in an additional plane of the
cache.

    token         0   1   2   3 | 4   5   6          in the blocks of its request
    row           F0  F1  F2  0 | F4  F5  F6         zeros: no features of this token are known

Code that moves or shares a block moves or shares its features, too. A replica that received KV
without features finds zeros.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from baton.engine.blocks.block_bytes import EngineCache
from baton.engine.blocks.block_pool import BlockPool
from baton.engine.memory.kv_cache import KvCache
from baton.engine.request.request import Request


class FeaturePlane:
    """Belongs to the engine's thread."""

    def __init__(self, arena: Tensor, cache: KvCache, pool: BlockPool) -> None:
        """`arena` [blocks, 1, block size, D] belongs to `cache`, whose blocks `pool` allocates."""
        self._arena = arena
        self._cache = cache
        self._pool = pool

    @classmethod
    def of(cls, cache: EngineCache, pool: BlockPool) -> FeaturePlane | None:
        """The plane of `cache`; None if its layout has no features, as is always the case with
        several ranks."""
        if not isinstance(cache, KvCache) or cache.features is None:
            return None
        return cls(cache.features, cache, pool)

    def keep(self, spans: Sequence[tuple[Request, int, int]], rows: Tensor) -> None:
        """Store `rows` [S, D], the features of `spans` end to end; a span is (request, first
        position, number of tokens)."""
        self._arena[self._places(spans)] = rows
        self._mark()

    def clear(self, request: Request, start: int, num_tokens: int) -> None:
        """Mark these tokens as having no features."""
        self._arena[self._places([(request, start, num_tokens)])] = 0
        self._mark()

    def recall(self, request: Request, start: int, stop: int) -> Tensor:
        """The features [n, D] of the last n computed tokens before position `stop`: as many as have
        features without a gap, none before position `start`."""
        rows = self._arena[self._places([(request, start, stop - start)])]
        gaps = (~rows.any(dim=1)).nonzero()
        return rows[int(gaps[-1]) + 1 :] if len(gaps) else rows

    def _places(self, spans: Sequence[tuple[Request, int, int]]) -> tuple[Tensor, int, Tensor]:
        """An index into the arena that selects one row per token."""
        size, blocks, slots = self._cache.layout.block_size, [], []
        for request, start, num_tokens in spans:
            table = self._pool.table(request.holder)
            for position in range(start, start + num_tokens):
                blocks.append(table[position // size])
                slots.append(position % size)
        places = torch.tensor([blocks, slots], dtype=torch.int64, device=self._arena.device)
        return places[0], 0, places[1]

    def _mark(self) -> None:
        if self._cache.staging is not None:  # copies of blocks must wait for these writes
            self._cache.staging.mark(self._cache.layout.num_planes - 1)
