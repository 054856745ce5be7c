"""A head continues what the model computed, token by token, and says what comes (MTP, EAGLE).

    known tokens     a b c d                 the model has computed a b c; d was drawn
    features         A B C                   what it computed of them
    pairs            (A b) (B c) (C d)       the head's, with a place in its KV each
    draft            x  from (C d), y from (C' x), z from (C'' y)     primes: what the head gave
    next, x right    (D x) is computed over (C' x), and so on

Pairs of verified tokens stay in the head's KV, in blocks of its own; those of drafts are written
over. What precedes the features that it is shown it never sees (`num_missing`): rotary positions
are relative, so it goes on as if the first that it saw were the first there is. A prompt that
begins as another did that was read whole finds the pairs of it, named by the tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from baton.engine.batch.batch import Chunk
from baton.engine.blocks.block_pool import BlockPool
from baton.engine.memory.kv_cache import KvCache
from baton.engine.models.heads.draft_head import DraftHead
from baton.engine.models.skeleton.taps import Taps
from baton.engine.passes.taped_head import TapedHead, run_head
from baton.engine.request.request import Request
from baton.engine.speculation.drafter import Draft
from baton.engine.speculation.growing_draft import GrowingDraft, grow
from baton.engine.speculation.hidden_reader import Shown

MIN_READ = 64
"""Features that are read as soon as they are shown; fewer wait for the next draft."""


@dataclass(slots=True, eq=False)
class _Reading:
    """What the head has of one request."""

    request: Request
    rows: Tensor  # [n, D] joined features that have no pair in its KV yet
    num_pairs: int
    """Of verified tokens, in its KV."""
    num_named: int
    skipped: int = 0
    """The position of a token less the place of its pair."""
    is_nameable: bool = field(init=False, default=True)
    """No token was skipped: its KV is what the tokens say."""

    @property
    def position(self) -> int:
        """Of the first of `rows`."""
        return self.skipped + self.num_pairs

    def add(self, start: int, rows: Tensor) -> int:
        """Of the tokens from `start` on; those that were there before were of drafts. How many
        tokens are skipped for good."""
        first = self.position
        if start > first + len(self.rows):
            self.rows, self.is_nameable = rows, False
            self.skipped += start - first
            return start - first
        if start >= first:
            self.rows = torch.cat((self.rows[: start - first], rows))
        elif start + len(rows) > first:
            self.rows = rows[first - start :]
        return 0

    def num_ready(self) -> int:
        """Rows of known tokens with a known one behind them."""
        return min(len(self.rows), len(self.request.tokens) - 1 - self.position)

    def chunk(self, num_rows: int, blocks: Sequence[int], num_outputs: int) -> Chunk:
        start = self.position + 1
        return Chunk(
            tokens=self.request.tokens[start : start + num_rows],
            start=self.num_pairs,
            blocks=blocks,
            num_outputs=num_outputs,
        )


class HeadDrafter:
    is_costly = True

    def __init__(
        self,
        name: str,
        head: DraftHead,
        cache: KvCache,
        *,
        eos_token_ids: Collection[int],
        taped: TapedHead | None = None,
        has_own_noise: bool = False,
    ) -> None:
        """`cache` is nobody else's, and that of `taped`; `eos_token_ids` are the model's.
        `has_own_noise`: see `grow`."""
        self._has_own_noise = has_own_noise
        self.name = name
        self.num_missing = 0
        self.taps = Taps(head.taps) if head.taps else None
        self._head = head
        self._cache = cache
        self._taped = taped
        self._eos_token_ids = eos_token_ids
        self._pool = BlockPool(cache)
        self._readings: dict[Request, _Reading] = {}

    @property
    def is_taped(self) -> bool:
        """Whether its short passes are played without Python."""
        return self._taped is not None

    @torch.inference_mode()
    def read(self, shown: Sequence[Shown], hidden: Tensor) -> None:
        features = hidden if self.taps is None else self.taps.features
        joined, stop = self._head.joined(features), 0
        many: list[_Reading] = []
        for request, start, num_rows in shown:
            first, stop = stop, stop + num_rows
            reading = self._readings.get(request) or self._begin(request, joined[:0])
            if reading is None or not num_rows:
                continue
            num_skipped = reading.add(start, joined[first:stop])
            self.num_missing += num_skipped
            request.num_draft_missing += num_skipped
            if reading.num_ready() > MIN_READ and self._has_room(reading, reading.num_ready()):
                many.append(reading)
        if many:
            self._pass(many, [reading.num_ready() - 1 for reading in many], num_outputs=0)

    @torch.inference_mode()
    def propose(self, requests: Sequence[Request], max_tokens: int) -> list[Draft]:
        drafts = [GrowingDraft(request) for request in requests]
        readings: list[_Reading] = []
        growing: list[GrowingDraft] = []
        for draft in drafts:
            reading = self._readings.get(draft.request)
            if reading is not None and self._may_draft(reading, max_tokens):
                readings.append(reading)
                growing.append(draft)
        if readings:
            self._draft(readings, growing, max_tokens)
        return [draft.done() for draft in drafts]

    def forget(self, request: Request) -> None:
        if self._readings.pop(request, None) is not None:
            self._pool.release(request.holder)

    def _begin(self, request: Request, no_rows: Tensor) -> _Reading | None:
        """None if there is no block for it."""
        num_cached = self._pool.reserve(
            request.holder,
            [*request.tokens[1:], 0],  # of the last token there is no pair yet
            _salt(request),
            tenant=request.tenant,
        )
        if num_cached is None:
            return None
        reading = _Reading(request, no_rows, num_cached, num_cached)
        self._readings[request] = reading
        return reading

    def _may_draft(self, reading: _Reading, max_tokens: int) -> bool:
        """It has been shown all that is known, and there is room for what is drafted."""
        num_ready = reading.num_ready()
        is_up_to_date = reading.position + num_ready == len(reading.request.tokens) - 1
        return (
            num_ready > 0 and is_up_to_date and self._has_room(reading, num_ready + max_tokens - 1)
        )

    def _has_room(self, reading: _Reading, num_more: int) -> bool:
        return self._pool.grow(reading.request.holder, reading.num_pairs + num_more)

    def _draft(
        self, readings: Sequence[_Reading], drafts: Sequence[GrowingDraft], max_tokens: int
    ) -> None:
        hidden = self._pass(readings, [reading.num_ready() for reading in readings], num_outputs=1)
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
        self, readings: Sequence[_Reading], counts: Sequence[int], *, num_outputs: int
    ) -> Tensor:
        """Let the head read the first rows of each; what it gave of the last of them, if wanted."""
        chunks = [
            reading.chunk(count, self._pool.table(reading.request.holder), num_outputs)
            for reading, count in zip(readings, counts, strict=True)
        ]
        rows = [r.rows[:count] for r, count in zip(readings, counts, strict=True)]
        hidden = self._run(chunks, rows[0] if len(rows) == 1 else torch.cat(rows))
        for reading, count in zip(readings, counts, strict=True):
            reading.rows = reading.rows[count:]
            reading.num_pairs += count
            self._name(reading)
        return hidden

    def _run(self, chunks: Sequence[Chunk], hidden: Tensor) -> Tensor:
        """[S, D] of the rows that are wanted."""
        if self._taped is not None and self._taped.fits(chunks):
            return self._taped.forward(chunks, hidden)
        return run_head(self._head, self._cache, chunks, hidden)

    def _name(self, reading: _Reading) -> None:
        """Blocks that are full of verified pairs may be found by others."""
        block_size = self._cache.layout.block_size
        num_full = reading.num_pairs // block_size * block_size
        if reading.is_nameable and num_full > reading.num_named:
            request = reading.request
            self._pool.commit(request.holder, request.tokens[1:], num_full, _salt(request))
            reading.num_named = num_full


def _salt(request: Request) -> bytes:
    """Names of pairs are of the tokens from the second on: the first is told here."""
    return request.salt + request.tokens[0].to_bytes(8, "little")
