"""The drafting work of one engine step, before and after its pass.

    begin    drafts for decoding requests, unless a pass is in flight already or drafting is paused
    read     gives the pass's hidden states to a drafter that needs them; it stores features with
             the KV where the layout has room for them

While a drafter reads hidden states, a pass must return the rows of all tokens, and no pass may be
launched before the previous one has been read.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from baton.core.clock import Clock
from baton.engine.batch.batch import Chunk
from baton.engine.request.request import Request
from baton.engine.schedule.drafted_chunks import NO_DRAFTS, Drafts, ScheduledChunk
from baton.engine.schedule.persistent_batch import PersistentBatch
from baton.engine.schedule.scheduler import Scheduler
from baton.engine.speculation.feature_plane import FeaturePlane
from baton.engine.speculation.hidden_reader import Shown
from baton.engine.speculation.speculation import Speculation


class DraftTurn:
    """One object for all steps of an engine. Belongs to the engine's thread."""

    def __init__(self, features: FeaturePlane | None, clock: Clock) -> None:
        """`features`: where draft features are kept with the KV; None if they are not."""
        self._features = features
        self._clock = clock
        self._speculation: Speculation | None = None
        self.is_read = False
        """Whether the drafter reads the hidden states of this step's pass."""
        self.recall_s = self.read_s = 0.0
        """Seconds of this step that the drafter took to read kept features of prompts, and to read
        the pass's hidden states."""

    def begin(
        self, speculation: Speculation | None, scheduler: Scheduler, *, is_in_flight: bool
    ) -> Drafts:
        """Drafts for the pass that is planned next. There are none if `speculation` is None or
        paused, or if that pass `is_in_flight` already."""
        is_idle = speculation is None or speculation.is_skipping
        if is_idle and speculation is self._speculation and not self.is_read:
            return NO_DRAFTS  # nothing has changed since the step before
        self.recall_s = self.read_s = 0.0
        self._speculation, self.is_read = speculation, False
        if speculation is None:
            return NO_DRAFTS
        is_inactive = speculation.is_inactive
        if speculation.reader is not None:
            self.is_read = self._features is not None or not is_inactive
            if speculation.reader.taps is not None:
                speculation.reader.taps.is_on = self.is_read
        if speculation.is_paused:
            speculation.watch(scheduler.running, clock=self._clock)
        if is_inactive or is_in_flight:
            return NO_DRAFTS
        running, joining = scheduler.running, scheduler.joining
        drafts = speculation.draft(
            [*running, *joining] if joining else running, self._features, clock=self._clock
        )
        self.recall_s = speculation.recall_s
        return drafts

    def wants_all(self, request: Request) -> bool:
        """Whether the drafter needs all rows of a request's chunk, not only those sampled from."""
        return self.is_read and request.embedding is None

    def read_persistent(self, batch: PersistentBatch, hidden: Tensor) -> None:
        """Read a pass of `batch`, one token per request; `hidden` [R, D]."""
        if self.is_read:
            self._show([Shown(r, r.num_computed, 1) for r in batch.requests], hidden)

    def read(
        self, chunks: Sequence[ScheduledChunk], inputs: Sequence[Chunk], hidden: Tensor
    ) -> None:
        """Read a pass of `chunks`, which ran as `inputs`; `hidden` [S, D] are their output rows,
        end to end."""
        if self.is_read:
            starts = [each.start + len(each.tokens) - each.num_outputs for each in inputs]
            nums = [each.num_outputs for each in inputs]
            self._show(list(map(Shown, [chunk.request for chunk in chunks], starts, nums)), hidden)
        if self._features is not None:
            for request, num_tokens, _ in chunks:
                if request.embedding is not None:  # the drafter was not shown its rows
                    self._features.clear(request, request.num_computed, num_tokens)

    def _show(self, shown: Sequence[Shown], hidden: Tensor) -> None:
        assert self._speculation is not None
        started_at = self._clock()
        self._speculation.read(shown, hidden, self._features)
        self.read_s = self._clock() - started_at
