"""Drafts with a head on the model's hidden states: token by token (MTP, EAGLE) or all tokens in one
pass (P-EAGLE).

    known tokens     a b c d                 the model has computed a b c; d was drawn
    features         A B C                   the model's hidden states of a b c
    pairs            (A b) (B c) (C d)       inputs of the head, each with an entry in the head's KV
    draft            x  from (C d), y from (C' x), z from (C'' y)     primes: the head's own outputs
    next, x right    (D x) overwrites (C' x), and so on
    at once          x from (C d), y from a mask token after it, z from another

Pairs of verified tokens stay in the head's KV, in blocks of its own; pairs of draft tokens are
overwritten. Where features are kept with the KV (`FeaturePlane`), the head reads a request's
features when it first drafts for it, whichever replica computed them. Tokens without features are
missing from the head's KV (`num_missing`). As rotary positions are relative, the head goes on as if
the first token that it saw were the first of the text. The head's KV has a prefix cache, too:
blocks of pairs are named by their tokens, so a prompt reuses the pairs of a shared prefix that was
read without gaps. Features for which there is no block wait; once there are more than `MIN_READ`,
they are dropped and count as missing.

While drafting is paused the head reads nothing. Features that are kept are read when their request
is drafted for again; where none are kept, the outputs of the last `NUM_SHOWN` passes are retained.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from baton.engine.batch.batch import Chunk
from baton.engine.blocks.block_pool import BlockPool
from baton.engine.memory.kv_cache import KvCache
from baton.engine.models.heads.draft_head import DraftHead, Mask
from baton.engine.models.skeleton.taps import AuxHiddenStates
from baton.engine.passes.taped_head import TapedHead, run_head
from baton.engine.request.request import Phase, Request
from baton.engine.speculation.drafter import Draft
from baton.engine.speculation.feature_plane import FeaturePlane
from baton.engine.speculation.growing_draft import GrowingDraft, grow, grow_at_once
from baton.engine.speculation.hidden_reader import Shown, tails

MIN_READ = 64
"""More than this many features are read right after the pass; fewer wait for the next draft."""
NUM_SHOWN = 16
"""Number of passes at the end of a pause whose outputs are retained. 16 are enough context to draft
by; with 64, each trial of a head that does not pay would lose two or three steps more."""
MAX_READ = 2048
"""Most features per pass of the head, which bounds its memory. It is also the most kept features
that are read in one step, so that a long prompt does not delay other requests."""


@dataclass(slots=True, eq=False)
class _Reading:
    """The head's state of one request."""

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
    """Those features, in pieces [n, D] that are concatenated on use: concatenating them in every
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


class HeadDrafter:
    """A `Drafter` and `HiddenReader`, for MTP, EAGLE and P-EAGLE heads."""

    is_costly = True
    num_passes = NUM_SHOWN

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
        """`cache` is used by this drafter alone, and is the one that `taped` was recorded with;
        `eos_token_ids` are the model's. `has_own_noise`: see `grow`."""
        self._has_own_noise = has_own_noise
        self.name = name
        self.num_missing = 0
        self.num_recalled = 0
        self.taps = AuxHiddenStates(head.taps) if head.taps else None
        self._head = head
        self._mask = head.mask()
        self._cache = cache
        self._taped = taped
        self._eos_token_ids = eos_token_ids
        self._pool = BlockPool(cache)
        self._readings: dict[Request, _Reading] = {}
        self._unread: deque[tuple[Sequence[Shown], Tensor]] = deque(maxlen=NUM_SHOWN)
        """Hidden states of the last passes during a pause, not read yet."""
        self._is_short = False
        """Whether a request got no block since the model's last pass."""
        self._features: FeaturePlane | None = None
        """The plane in which the last pass's features were kept; None if they were not."""

    @property
    def drafts_at_once(self) -> bool:
        """Whether all tokens of a draft take one pass, so that a longer draft takes hardly
        longer."""
        return self._mask is not None

    @property
    def is_taped(self) -> bool:
        """Whether short passes of the head are replayed from a recording, without Python."""
        return self._taped is not None

    @torch.inference_mode()
    def read(
        self,
        shown: Sequence[Shown],
        hidden: Tensor,
        features: FeaturePlane | None = None,
        *,
        is_resting: bool,
    ) -> None:
        given = hidden if self.taps is None else self.taps.features
        if is_resting:
            self._cut_drafts(shown)
        if features is None and is_resting:
            self._unread.append(tails(shown, given, NUM_SHOWN))
            return
        self._features, joined = features, self._head.joined(given)
        if features is not None:
            features.keep(shown, joined)
        if is_resting:
            return
        if self._is_short:
            self._forget_who_was_preempted()
        self._add_unread()
        many: list[_Reading] = []
        for each, rows in zip(shown, _split(shown, joined), strict=True):
            reading = self._add(each, rows)
            if reading is None:
                continue
            if self._may_read(reading):
                many.append(reading)
            self._tell_missing(reading)
        self._catch_up(many)

    def _add_unread(self) -> None:
        if not self._unread:
            return
        shown = [each for of_pass, _ in self._unread for each in of_pass]
        joined = self._head.joined(torch.cat([rows for _, rows in self._unread]))
        self._unread.clear()
        for each, rows in zip(shown, _split(shown, joined), strict=True):
            if each.request.phase is Phase.RUNNING:  # a preempted request is computed again
                self._add(each, rows)

    def _cut_drafts(self, shown: Sequence[Shown]) -> None:
        """Drop features of draft tokens at the beginning of a pause: later passes may not be shown,
        so nothing would overwrite them."""
        for request, start, _ in shown:
            reading = self._readings.get(request)
            if reading is not None and start < reading.end:
                reading.cut(start)

    def _add(self, shown: Shown, rows: Tensor) -> _Reading | None:
        """Add one request's features [n, D]. Returns None if there is nothing to add: it only wants
        an embedding, no rows were shown, or its kept features are read when it is drafted for."""
        if shown.request.embedding is not None or not shown.num_rows:
            return None
        reading = self._readings.get(shown.request)
        if self._features is not None and (reading is None or reading.end < shown.start):
            return None
        reading = reading or self._begin(shown.request)
        reading.add(shown.start, rows)
        return reading

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

    def discard(self, request: Request) -> None:
        self._pool.forget(request.holder)
        self._pool.wipe(request.holder)
        self.forget(request)

    def _forget_who_was_preempted(self) -> None:
        """Free the blocks of preempted requests. Named blocks may still be found by them in the
        prefix cache when they run again."""
        for request in [r for r in self._readings if r.phase is not Phase.RUNNING]:
            self.forget(request)
        self._is_short = False

    def _begin(self, request: Request) -> _Reading:
        """Begin a request with the pairs found in the prefix cache. Further blocks are allocated
        when there are features to read."""
        num_cached = self._pool.hold_cached(request.holder, request.tokens[1:], _salt(request))
        reading = _Reading(request, num_cached, num_cached)
        self._readings[request] = reading
        return reading

    @torch.inference_mode()
    def recall(self, requests: Sequence[Request], features: FeaturePlane | None) -> None:
        """Read kept features of computed tokens that were not read yet, `MAX_READ` in all. Requests
        that are not up to date after that get no draft in this step."""
        self._features, num_left = features, MAX_READ
        if features is None:
            return
        for request in requests:
            reading = self._readings.get(request)
            if reading is None:
                reading = self._begin(request)
            start = reading.end
            stop = min(request.num_computed, start + num_left)
            if stop <= start:
                continue
            rows = features.recall(request, start, stop)
            reading.add(stop - len(rows), rows)
            num_left -= stop - start
            self.num_recalled += len(rows)
            if self._may_read(reading):
                self._catch_up([reading])
            self._tell_missing(reading)

    def _may_read(self, reading: _Reading) -> bool:
        """Whether there are more than `MIN_READ` features to read and blocks for them. Without
        blocks the features are dropped."""
        num_ready = reading.num_ready()
        if num_ready <= MIN_READ:
            return False
        has_room = self._has_room(reading, num_ready)
        if not has_room:
            reading.drop(num_ready - 1)
        return has_room

    def _tell_missing(self, reading: _Reading) -> None:
        self.num_missing += reading.skipped - reading.num_told
        reading.request.num_draft_missing = reading.num_told = reading.skipped

    def _may_draft(self, reading: _Reading, max_tokens: int) -> bool:
        """Whether the head has features of all known tokens but the last, and blocks for a
        draft."""
        num_ready = reading.num_ready()
        is_up_to_date = reading.position + num_ready == len(reading.request.tokens) - 1
        return (
            num_ready > 0 and is_up_to_date and self._has_room(reading, num_ready + max_tokens - 1)
        )

    def _has_room(self, reading: _Reading, num_more: int) -> bool:
        has_room = self._pool.grow(reading.request.holder, reading.num_pairs + num_more)
        self._is_short |= not has_room
        return has_room

    def _catch_up(self, readings: Sequence[_Reading]) -> None:
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

    def _draft(
        self, readings: Sequence[_Reading], drafts: Sequence[GrowingDraft], max_tokens: int
    ) -> None:
        if sum(reading.num_ready() for reading in readings) > MAX_READ:
            self._catch_up(readings)
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
        self, readings: Sequence[_Reading], counts: Sequence[int], *, num_outputs: int
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

    def _name(self, reading: _Reading) -> None:
        """Name the blocks that are full of verified pairs, so that other requests can reuse
        them."""
        block_size = self._cache.layout.block_size
        num_full = reading.num_pairs // block_size * block_size
        if reading.is_nameable and num_full > reading.num_named:
            request = reading.request
            self._pool.commit(request.holder, request.tokens[1:], num_full, _salt(request))
            reading.num_named = num_full


def _salt(request: Request) -> bytes:
    """The salt of block names, including the first token: pairs are named by the tokens from the
    second on, so the first would be missing from the name."""
    return request.salt + request.tokens[0].to_bytes(8, "little")


def _split(shown: Sequence[Shown], rows: Tensor) -> Sequence[Tensor]:
    """The rows of each request in `shown`."""
    return torch.split(rows, [each.num_rows for each in shown])
