"""The passes of a draft head: they turn features into pairs of its KV, and draft after the last.

    token by token   x from (C d), y from (C' x), z from (C'' y)     primes: the head's own outputs
    at once          x from (C d), y from a mask token after it, z from another

Pairs of verified tokens stay in the head's KV; pairs of draft tokens are overwritten.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from baton.engine.batch.batch import Chunk
from baton.engine.blocks.block_pool import BlockPool
from baton.engine.memory.kv_cache import KvCache
from baton.engine.models.heads.draft_head import DraftHead
from baton.engine.passes.taped_head import TapedHead, run_head
from baton.engine.speculation.growing_draft import GrowingDraft, grow, grow_at_once
from baton.engine.speculation.head_reading import HeadReading, pair_salt

MAX_READ = 2048
"""Most features per pass of the head, which bounds its memory."""


class HeadPasses:
    def __init__(
        self,
        head: DraftHead,
        cache: KvCache,
        pool: BlockPool,
        *,
        eos_token_ids: Collection[int],
        taped: TapedHead | None,
        has_own_noise: bool,
    ) -> None:
        """`pool` has the blocks of `cache`; the other parameters are those of `HeadDrafter`."""
        self._head = head
        self._cache = cache
        self._pool = pool
        self._mask = head.mask()
        self._eos_token_ids = eos_token_ids
        self._taped = taped
        self._has_own_noise = has_own_noise

    def catch_up(self, readings: Sequence[HeadReading]) -> None:
        """Run the head over all features that are ready, except the last of each request, from
        which the next draft begins."""
        behind = [reading for reading in readings if reading.num_ready() > 1]
        while behind:
            counts, num_left = [], MAX_READ
            for reading in behind:
                counts.append(min(reading.num_ready() - 1, num_left))
                num_left -= counts[-1]
            counts = [count for count in counts if count]
            self._pass(behind[: len(counts)], counts, num_outputs=0)
            behind = [reading for reading in behind if reading.num_ready() > 1]

    def draft(
        self, readings: Sequence[HeadReading], drafts: Sequence[GrowingDraft], max_tokens: int
    ) -> None:
        """Grow a draft of each request: its reading has features of all known tokens but the last,
        and blocks for the draft."""
        if sum(reading.num_ready() for reading in readings) > MAX_READ:
            self.catch_up(readings)
        counts = [reading.num_ready() for reading in readings]
        if self._mask is not None:
            hidden = self._pass(readings, counts, num_outputs=max_tokens)
            logits = self._head.logits(hidden)
            logits = logits.view(len(readings), max_tokens, logits.shape[-1])
            grow_at_once(drafts, logits, self._eos_token_ids, has_own_noise=self._has_own_noise)
            return
        hidden = self._pass(readings, counts, num_outputs=1)
        for depth in range(max_tokens):
            going = grow(
                drafts,
                self._head.logits(hidden),
                self._eos_token_ids,
                has_own_noise=self._has_own_noise,
            )
            if not going or depth == max_tokens - 1:
                return
            if len(going) < len(drafts):
                readings = [readings[row] for row in going]
                drafts = [drafts[row] for row in going]
                hidden = hidden[going]
            chunks = [
                Chunk(
                    tokens=draft.tokens[-1:],
                    start=reading.num_pairs + depth,
                    blocks=self._pool.table(reading.request.holder),
                    num_outputs=1,
                )
                for reading, draft in zip(readings, drafts, strict=True)
            ]
            hidden = self._run(chunks, hidden)

    def _pass(
        self, readings: Sequence[HeadReading], counts: Sequence[int], *, num_outputs: int
    ) -> Tensor:
        """Run the head over the first `counts` features of each request. Returns its outputs
        [len(readings) * num_outputs, D]: of each request's last feature, and of the
        `num_outputs` - 1 mask tokens after it."""
        masks = [] if self._mask is None else [self._mask] * (num_outputs - 1)
        chunks, rows = [], []
        for reading, count in zip(readings, counts, strict=True):
            blocks = self._pool.table(reading.request.holder)
            chunks.append(reading.chunk(count, masks, blocks, num_outputs))
            rows += [reading.rows[:count], *[mask.row for mask in masks]]
        hidden = self._run(chunks, rows[0] if len(rows) == 1 else torch.cat(rows))
        for reading, count in zip(readings, counts, strict=True):
            reading.rows = reading.rows[count:]
            reading.num_pairs += count
            self._name(reading)
        return hidden

    def _run(self, chunks: Sequence[Chunk], hidden: Tensor) -> Tensor:
        """Run the head on inputs `hidden`; returns the wanted output rows [S, D]."""
        if self._taped is not None and self._taped.fits(chunks):
            return self._taped.forward(chunks, hidden)
        return run_head(self._head, self._cache, chunks, hidden)

    def _name(self, reading: HeadReading) -> None:
        """Name the blocks that are full of verified pairs, so that other requests can reuse
        them."""
        block_size = self._cache.layout.block_size
        num_full = reading.num_pairs // block_size * block_size
        if reading.is_nameable and num_full > reading.num_named:
            request = reading.request
            self._pool.commit(request.holder, request.tokens[1:], num_full, pair_salt(request))
            reading.num_named = num_full
