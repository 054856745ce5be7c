"""One step's drafting: what is drafted for its pass, and which drafters read what the pass
computes.

    begin    drafts for decoding requests, unless a pass is in flight already or drafting is paused
    read     hidden states go to the drafters that need them, and are kept with the KV where blocks
             have room

A drafter that reads passes may want the rows of all tokens, and no pass launched ahead of that.
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
    """Belongs to the engine's thread; one for all of its steps."""

    def __init__(self, features: FeaturePlane | None, clock: Clock) -> None:
        """`features`: where those of prompts are kept, if they are."""
        self._features = features
        self._clock = clock
        self._speculation: Speculation | None = None
        self.is_read = False
        """Whether hidden states of this step are shown to who drafts by them."""
        self.recall_s = self.read_s = 0.0
        """Seconds of this step until the drafter had read the kept features of prompts, and the
        pass's hidden states.
        """

    def begin(
        self, speculation: Speculation | None, scheduler: Scheduler, *, is_in_flight: bool
    ) -> Drafts:
        """Guesses for the pass that is planned next, unless that `is_in_flight` already."""
        is_idle = speculation is None or speculation.is_napping
        if is_idle and speculation is self._speculation and not self.is_read:
            return NO_DRAFTS  # all is as in the step before
        self.recall_s = self.read_s = 0.0
        self._speculation, self.is_read = speculation, False
        if speculation is None:
            return NO_DRAFTS
        is_asleep = speculation.is_asleep
        if speculation.reader is not None:
            self.is_read = self._features is not None or not is_asleep
            if speculation.reader.taps is not None:
                speculation.reader.taps.is_on = self.is_read
        if speculation.is_paused:
            speculation.watch(scheduler.running, clock=self._clock)
        if is_asleep or is_in_flight:
            return NO_DRAFTS
        running, joining = scheduler.running, scheduler.joining
        drafts = speculation.draft(
            [*running, *joining] if joining else running, self._features, clock=self._clock
        )
        self.recall_s = speculation.recall_s
        return drafts

    def wants_all(self, request: Request) -> bool:
        """Whether it is to be shown all rows of a request's chunk, not only those sampled from."""
        return self.is_read and request.embedding is None

    def read_persistent(self, batch: PersistentBatch, hidden: Tensor) -> None:
        """A pass of a token each is computed; `hidden` [S, D]."""
        if self.is_read:
            self._show([Shown(r, r.num_computed, 1) for r in batch.requests], hidden)

    def read(
        self, chunks: Sequence[ScheduledChunk], inputs: Sequence[Chunk], hidden: Tensor
    ) -> None:
        """The pass of `chunks`, as `inputs`, is computed; `hidden` [S, D] are their outputs."""
        if self.is_read:
            starts = [each.start + len(each.tokens) - each.num_outputs for each in inputs]
            nums = [each.num_outputs for each in inputs]
            self._show(list(map(Shown, [chunk.request for chunk in chunks], starts, nums)), hidden)
        if self._features is not None:
            for request, num_tokens, _ in chunks:
                if request.embedding is not None:  # nobody was shown its rows
                    self._features.clear(request, request.num_computed, num_tokens)

    def _show(self, shown: Sequence[Shown], hidden: Tensor) -> None:
        assert self._speculation is not None
        started_at = self._clock()
        self._speculation.read(shown, hidden, self._features)
        self.read_s = self._clock() - started_at
