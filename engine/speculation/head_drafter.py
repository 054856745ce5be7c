"""Drafts with a head on the model's hidden states: token by token (MTP, EAGLE) or all tokens in one
pass (P-EAGLE).

    known tokens     a b c d                 the model has computed a b c; d was drawn
    features         A B C                   the model's hidden states of a b c
    pairs            (A b) (B c) (C d)       inputs of the head, each with an entry in the head's KV
    draft            x y z                   after (C d): see `HeadPasses`
    next, x right    (D x) overwrites the pair of the draft's x, and so on

`HeadDrafter` decides which features the head reads, and when. `HeadReading` is how far the head has
read one request; `HeadPasses` runs the head.

Where features are kept with the KV (`FeaturePlane`), the head reads a request's features when it
first drafts for it, whichever replica computed them. Tokens without features are missing from the
head's KV (`num_missing`). As rotary positions are relative, the head goes on as if the first token
that it saw were the first of the text. The head's KV has a prefix cache, too: blocks of pairs are
named by their tokens, so a prompt reuses the pairs of a shared prefix that was read without gaps.
Features for which there is no block wait; once there are more than `MIN_READ`, they are dropped and
count as missing.

While drafting is paused the head reads nothing. Features that are kept are read when their request
is drafted for again; where none are kept, the outputs of the last `NUM_SHOWN` passes are retained.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from baton.engine.blocks.block_pool import BlockPool
from baton.engine.memory.kv_cache import KvCache
from baton.engine.models.heads.draft_head import DraftHead
from baton.engine.models.skeleton.taps import AuxHiddenStates
from baton.engine.passes.taped_head import TapedHead
from baton.engine.request.request import Phase, Request
from baton.engine.speculation.drafter import Draft
from baton.engine.speculation.feature_plane import FeaturePlane
from baton.engine.speculation.growing_draft import GrowingDraft
from baton.engine.speculation.head_passes import HeadPasses
from baton.engine.speculation.head_reading import HeadReading, pair_salt
from baton.engine.speculation.hidden_reader import Shown, tails

MIN_READ = 64
"""More than this many features are read right after the pass; fewer wait for the next draft."""
NUM_SHOWN = 16
"""Number of passes at the end of a pause whose outputs are retained. 16 are enough context to draft
by; with 64, each trial of a head that does not pay would lose two or three steps more."""
MAX_RECALLED = 2048
"""Most kept features that are read in one step, so that a long prompt does not delay other
requests."""


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
        self.name = name
        self.num_missing = 0
        self.num_recalled = 0
        self.taps = AuxHiddenStates(head.taps) if head.taps else None
        self.drafts_at_once = head.mask() is not None
        """Whether all tokens of a draft take one pass, so that a longer draft takes hardly
        longer."""
        self.is_taped = taped is not None
        """Whether short passes of the head are replayed from a recording, without Python."""
        self._head = head
        self._pool = BlockPool(cache)
        self._passes = HeadPasses(
            head,
            cache,
            self._pool,
            eos_token_ids=eos_token_ids,
            taped=taped,
            has_own_noise=has_own_noise,
        )
        self._readings: dict[Request, HeadReading] = {}
        self._unread: deque[tuple[Sequence[Shown], Tensor]] = deque(maxlen=NUM_SHOWN)
        """Hidden states of the last passes during a pause, not read yet."""
        self._is_short = False
        """Whether a request got no block since the model's last pass."""
        self._features: FeaturePlane | None = None
        """The plane in which the last pass's features were kept; None if they were not."""

    @torch.inference_mode()
    def read(
        self,
        shown: Sequence[Shown],
        hidden: Tensor,
        features: FeaturePlane | None = None,
        *,
        is_paused: bool,
    ) -> None:
        given = hidden if self.taps is None else self.taps.features
        if is_paused:
            self._cut_drafts(shown)
        if features is None and is_paused:
            self._unread.append(tails(shown, given, NUM_SHOWN))
            return
        self._features, joined = features, self._head.joined(given)
        if features is not None:
            features.keep(shown, joined)
        if is_paused:
            return
        if self._is_short:
            self._forget_preempted()
        self._add_unread()
        many: list[HeadReading] = []
        for each, rows in zip(shown, _split(shown, joined), strict=True):
            reading = self._add(each, rows)
            if reading is None:
                continue
            if self._may_read(reading):
                many.append(reading)
            self._tell_missing(reading)
        self._passes.catch_up(many)

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

    def _add(self, shown: Shown, rows: Tensor) -> HeadReading | None:
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
        readings: list[HeadReading] = []
        growing: list[GrowingDraft] = []
        for draft in drafts:
            reading = self._readings.get(draft.request)
            if reading is not None and self._may_draft(reading, max_tokens):
                readings.append(reading)
                growing.append(draft)
        if readings:
            self._passes.draft(readings, growing, max_tokens)
        return [draft.done() for draft in drafts]

    def forget(self, request: Request) -> None:
        if self._readings.pop(request, None) is not None:
            self._pool.release(request.holder)

    def discard(self, request: Request) -> None:
        self._pool.forget(request.holder)
        self._pool.wipe(request.holder)
        self.forget(request)

    def _forget_preempted(self) -> None:
        """Free the blocks of preempted requests. Named blocks may still be found by them in the
        prefix cache when they run again."""
        for request in [r for r in self._readings if r.phase is not Phase.RUNNING]:
            self.forget(request)
        self._is_short = False

    def _begin(self, request: Request) -> HeadReading:
        """Begin a request with the pairs found in the prefix cache. Further blocks are allocated
        when there are features to read."""
        num_cached = self._pool.hold_cached(request.holder, request.tokens[1:], pair_salt(request))
        reading = HeadReading(request, num_cached, num_cached)
        self._readings[request] = reading
        return reading

    @torch.inference_mode()
    def recall(self, requests: Sequence[Request], features: FeaturePlane | None) -> None:
        """Read kept features of computed tokens that were not read yet, `MAX_RECALLED` in all.
        Requests that are not up to date after that get no draft in this step."""
        self._features, num_left = features, MAX_RECALLED
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
                self._passes.catch_up([reading])
            self._tell_missing(reading)

    def _may_read(self, reading: HeadReading) -> bool:
        """Whether there are more than `MIN_READ` features to read and blocks for them. Without
        blocks the features are dropped."""
        num_ready = reading.num_ready()
        if num_ready <= MIN_READ:
            return False
        has_room = self._has_room(reading, num_ready)
        if not has_room:
            reading.drop(num_ready - 1)
        return has_room

    def _tell_missing(self, reading: HeadReading) -> None:
        self.num_missing += reading.skipped - reading.num_told
        reading.request.num_draft_missing = reading.num_told = reading.skipped

    def _may_draft(self, reading: HeadReading, max_tokens: int) -> bool:
        """Whether the head has features of all known tokens but the last, and blocks for a
        draft."""
        num_ready = reading.num_ready()
        is_up_to_date = reading.position + num_ready == len(reading.request.tokens) - 1
        return (
            num_ready > 0 and is_up_to_date and self._has_room(reading, num_ready + max_tokens - 1)
        )

    def _has_room(self, reading: HeadReading, num_more: int) -> bool:
        has_room = self._pool.grow(reading.request.holder, reading.num_pairs + num_more)
        self._is_short |= not has_room
        return has_room


def _split(shown: Sequence[Shown], rows: Tensor) -> Sequence[Tensor]:
    """The rows of each request in `shown`."""
    return torch.split(rows, [each.num_rows for each in shown])
