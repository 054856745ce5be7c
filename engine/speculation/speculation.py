"""Speculative decoding: makes drafts for decoding requests and decides how many of their tokens are
verified.

    draft      drafter -> cut at endings and by grammars -> acceptance rates -> budget of rows
    verified   number of accepted tokens -> acceptance rates
    learn      time of the step -> budget

The decision is made for the whole batch: the tokens most likely to be accepted are verified,
whichever request they belong to. It affects only when a token comes, never which one.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from baton.core.clock import Clock, monotonic
from baton.engine.request.request import Request
from baton.engine.request.step_report import StepReport
from baton.engine.schedule.drafted_chunks import NO_DRAFTS, Drafts
from baton.engine.schedule.persistent_batch import PersistentBatch
from baton.engine.speculation.acceptance_rates import AcceptanceRates
from baton.engine.speculation.draft_budget import DraftBudget
from baton.engine.speculation.draft_tally import DraftCounts, DraftTally
from baton.engine.speculation.drafter import Draft, Drafter, Refiner
from baton.engine.speculation.feature_plane import FeaturePlane
from baton.engine.speculation.hidden_reader import HiddenReader, Shown
from baton.engine.speculation.watch import MIN_RUNNING, Watch

COLLAPSED = 0.2
"""Acceptance rate below which drafting is reported as collapsed."""


class Speculation:
    """Belongs to the engine's thread; `metrics` may be called by any."""

    def __init__(
        self,
        drafter: Drafter,
        budget: DraftBudget,
        *,
        reader: HiddenReader | None = None,
        refiner: Refiner | None = None,
    ) -> None:
        """`reader` is the drafter itself if it reads the model's hidden states; `refiner` is the
        drafter itself if it learns from what the model draws after draft tokens."""
        self.drafter = drafter
        self.reader = reader
        self._refiner = refiner
        self._budget = budget
        self._acceptance = AcceptanceRates()
        self._watch = None
        if not drafter.is_costly and reader is None:
            self._watch = Watch(drafter, self._acceptance, budget.max_tokens)
        self.is_skipping = False
        """Whether drafting is paused and nothing at all is to be done in the next step."""
        self._skippable_s = self._skipped_s = 0.0
        """Seconds of steps that may be skipped, and how many of them are over."""
        self._may_watch = False
        """Whether drafts could be compared in the last step in which that was due."""
        self._confidences: dict[Request, Sequence[float]] = {}
        """Confidence of each token drafted for this step."""
        self._drawn_from: dict[Request, Sequence[Tensor]] = {}
        """The distributions [V] of those tokens, if the drafter gives them. They are dropped once
        the tokens are verified, as they are large."""
        self.recall_s = 0.0
        """Seconds of the last `draft` in which the reader read the kept features of prompts."""
        self._tally = DraftTally()

    @property
    def is_paused(self) -> bool:
        """Whether drafting is paused for many steps."""
        return self._budget.is_paused

    @property
    def is_collapsed(self) -> bool:
        """Whether drafts lose time because few draft tokens are accepted."""
        return (
            self._budget.has_lost
            and self._tally.acceptance is not None
            and self._tally.acceptance < COLLAPSED
        )

    @property
    def is_inactive(self) -> bool:
        """Whether drafting is paused and the end of the pause is not near, so that in this step
        `draft` and `read` need not be called."""
        return self._budget.is_inactive

    def draft(
        self,
        running: Sequence[Request],
        features: FeaturePlane | None = None,
        *,
        clock: Clock = monotonic,
    ) -> Drafts:
        """The draft tokens to verify in the next pass. `running` includes adopted requests that are
        about to be admitted; `features` is the plane of kept features, if there is one."""
        self.recall_s = 0.0
        if self._confidences:
            self._confidences, self._drawn_from = {}, {}
        if not self._budget.begins(len(running)):
            return NO_DRAFTS
        if self._budget.begins_trial():
            self._acceptance.begin_anew()
        wanted: dict[Request, int] = {}
        """Number of tokens that each request may still get after its next one."""
        for request in running:
            num = request.ending.num_tokens - len(request.tokens) - 1
            if num > 0 and PersistentBatch.decodes(request):
                wanted[request] = num
        if not wanted:
            return NO_DRAFTS
        asking = list(wanted)
        share = self._acceptance.share if self.drafter.is_costly else None
        depth = self._budget.depth(len(running), len(asking), share)
        if not depth:
            return NO_DRAFTS
        if self.reader is not None:
            started_at = clock()
            self.reader.recall(asking, features)
            self.recall_s = clock() - started_at
        drafts = zip(wanted.items(), self.drafter.propose(asking, depth), strict=True)
        cut = {request: _cut(request, num, d) for (request, num), d in drafts if d.tokens}
        return self._chosen(len(running), cut) if cut else NO_DRAFTS

    def watch(self, running: Sequence[Request], *, clock: Clock = monotonic) -> None:
        """Called at the beginning of each step of a pause: now and then compares a draft with what
        the model draws, and ends the pause if drafts have become worthwhile."""
        watch = self._watch
        if watch is None or not watch.is_due:
            return
        row_price = None
        if len(running) >= MIN_RUNNING:
            row_price = self._budget.row_price(len(running))
        self._may_watch = row_price is not None
        if row_price is None:
            return
        watch.look(running, row_price, clock)
        if self._budget.watched(watch.gain, watch.num_compared):
            watch.was_right()

    def read(
        self, shown: Sequence[Shown], hidden: Tensor, features: FeaturePlane | None = None
    ) -> None:
        """Let the reader take in the hidden states [S, D] of a pass. Need not be called while
        `is_inactive`, unless there is a plane of features."""
        assert self.reader is not None
        self.reader.read(shown, hidden, features, is_paused=self.is_paused)

    def drawn_from(self, request: Request) -> Sequence[Tensor]:
        """The distribution [V] of each token drafted for `request` in this step; empty if the
        drafter gives none."""
        return self._drawn_from.get(request, ())

    @property
    def refines(self) -> bool:
        """Whether `drew` needs to be called."""
        return self._refiner is not None

    def drew(
        self,
        request: Request,
        drafted: Sequence[int],
        drawn: Sequence[int],
        are_finite: Sequence[bool],
    ) -> None:
        """Take in the tokens that a pass drew: after the known tokens of `request`, and after each
        of `drafted`. Ignored if a row's logits were not finite."""
        if self._refiner is not None and all(are_finite):
            self._refiner.drew(request, drafted, drawn)

    def verified(self, request: Request, num_drafted: int, num_accepted: int) -> None:
        """Note that `num_accepted` of the first `num_drafted` tokens drafted for `request` were
        right."""
        self._drawn_from.pop(request, None)
        confidences = self._confidences[request][:num_drafted]
        self._acceptance.learn(request, confidences, num_accepted)
        self._tally.verified(num_drafted, num_accepted)

    def learn(self, report: StepReport, seconds: float) -> None:
        """Take in a step that took `seconds`."""
        if self.is_skipping:
            if self._skipped_s + seconds < self._skippable_s:
                self._skipped_s += seconds
                return
            self._end_skipping()
        was_paused = self._budget.is_paused
        self._budget.learn(report, seconds)
        if self._watch is not None:
            self._watch.allow(seconds)
            if self._budget.is_paused and not was_paused:
                self._watch.begin_pause()
                self._may_watch = True
        self._begin_skipping(seconds)

    def forget(self, request: Request) -> None:
        """Forget a request that has left the engine."""
        self.drafter.forget(request)
        self._acceptance.forget(request)
        self._drawn_from.pop(request, None)
        if self._watch is not None:
            self._watch.forget(request)
        if self.is_skipping:
            self._end_skipping()
        self._budget.left()

    def discard(self, request: Request) -> None:
        """Remove everything that was derived from a request's hidden states, which are wrong."""
        if self.reader is not None:
            self.reader.discard(request)

    def counts(self) -> DraftCounts:
        """Counts so far."""
        return self._tally.counts()

    def metrics(self) -> dict[str, float]:
        """Metrics by Prometheus name."""
        return {
            **self._tally.metrics(),
            "speculation_paused": float(self.is_paused),
            "speculation_pauses_total": self._budget.num_pauses,
            "speculation_collapsed": float(self.is_collapsed),
            "draft_missing_tokens_total": 0 if self.reader is None else self.reader.num_missing,
            "draft_recalled_tokens_total": 0 if self.reader is None else self.reader.num_recalled,
        }

    def _begin_skipping(self, step_s: float) -> None:
        """During the inactive part of a pause, skip all work until the next draft is due to be
        compared. Times of steps are only added up until then, and taken in by `_end_skipping`."""
        skippable_s = self._budget.skippable_s(step_s)
        if self._watch is not None and self._may_watch:
            skippable_s = min(skippable_s, self._watch.due_in_s)
        self._skippable_s, self._skipped_s = skippable_s, 0.0
        self.is_skipping = skippable_s > step_s

    def _end_skipping(self) -> None:
        self.is_skipping = False
        self._budget.skipped(self._skipped_s)
        if self._watch is not None:
            self._watch.allow(self._skipped_s)

    def _chosen(self, num_running: int, drafts: dict[Request, Draft]) -> Drafts:
        """The draft tokens to verify, by request: as many of the likeliest as the budget allows. If
        the drafter gives distributions, all are verified: the published rule is exact only if the
        selection does not depend on which tokens were drawn."""
        probabilities: list[float] = []
        owners: list[Request] = []
        for request, draft in drafts.items():
            chances = self._acceptance.of(request, draft.confidences)
            probabilities += chances
            owners += [request] * len(chances)
        if not probabilities:
            return NO_DRAFTS
        self._tally.num_proposed += len(probabilities)
        # Probabilities never rise within a draft, and the sort is stable, so prefixes are selected.
        order = sorted(range(len(probabilities)), key=probabilities.__getitem__, reverse=True)
        num_rows, are_drawn = len(probabilities), any([draft.q for draft in drafts.values()])
        if not are_drawn:
            num_rows = self._budget.num_rows(num_running, [probabilities[at] for at in order])
        if not num_rows:
            return NO_DRAFTS
        lens: dict[Request, int] = {}
        for at in order[:num_rows]:
            request = owners[at]
            lens[request] = lens.get(request, 0) + 1
        self._confidences = {request: drafts[request].confidences for request in lens}
        if are_drawn:
            self._drawn_from = {request: drafts[request].q for request in lens}
        return {request: drafts[request].tokens[:num] for request, num in lens.items()}


def _cut(request: Request, num_wanted: int, draft: Draft) -> Draft:
    """The draft, cut to `num_wanted` tokens, before a token that may end the request, and before
    the first token that its grammar does not allow."""
    tokens, ends = draft.tokens, request.ending.tokens
    num = min(len(tokens), num_wanted)
    if not ends.isdisjoint(tokens):
        num = next((at for at in range(num) if tokens[at] in ends), num)
    if request.matcher is not None and num:
        num = request.matcher.num_allowed(tokens[:num])
    if num == len(tokens):
        return draft
    return Draft(tokens[:num], draft.confidences[:num], draft.q[:num])
