"""Drafts for those who decode: who gets how many, and whether any.

    draft      drafter -> cut: endings, grammars -> survival -> the rows that the budget has
    verified   what came of them -> survival
    learn      what the step took -> budget

For the whole batch at once: rows go to the tokens that are most likely to be right. Whatever is
decided here changes no token, only when it comes.
"""

from __future__ import annotations

from collections.abc import Sequence

from baton.engine.request.request import Request
from baton.engine.request.step_report import StepReport
from baton.engine.schedule.lineup import Lineup
from baton.engine.schedule.scheduler import NO_DRAFTS, Drafts
from baton.engine.speculation.draft_budget import DraftBudget
from baton.engine.speculation.drafter import Draft, Drafter
from baton.engine.speculation.survival import Survival


class Speculation:
    """Belongs to the engine's thread; `metrics` is for any."""

    def __init__(self, drafter: Drafter, budget: DraftBudget) -> None:
        self.drafter = drafter
        self._budget = budget
        self._survival = Survival()
        self._confidences: dict[Request, Sequence[float]] = {}
        """Of what was drafted for this step."""
        self._num_proposed = 0
        self._num_accepted_at: list[int] = []
        """By position in the draft."""

    @property
    def is_paused(self) -> bool:
        """Nothing will be drafted for many steps."""
        return self._budget.is_paused

    def draft(self, running: Sequence[Request]) -> Drafts:
        """What to verify in the next pass."""
        self._confidences = {}
        if not self._budget.begins(len(running)):
            return NO_DRAFTS
        asking = [request for request in running if _num_wanted(request) > 0]
        if not asking:
            return NO_DRAFTS
        share = self._survival.share if self.drafter.is_costly else None
        depth = self._budget.depth(len(running), len(asking), share)
        if not depth:
            return NO_DRAFTS
        drafts = zip(asking, self.drafter.propose(asking, depth), strict=True)
        return self._chosen(len(running), {request: _cut(request, d) for request, d in drafts})

    def verified(self, request: Request, num_drafted: int, num_accepted: int) -> None:
        """Of the first `num_drafted` tokens that were drafted for it so many were right."""
        confidences = self._confidences[request][:num_drafted]
        self._survival.learn(request, confidences, num_accepted)
        counts = self._num_accepted_at
        counts.extend([0] * (num_accepted - len(counts)))
        for position in range(num_accepted):
            counts[position] += 1

    def learn(self, report: StepReport, seconds: float) -> None:
        """A step is over for which `draft` was asked."""
        self._budget.learn(report, seconds)

    def forget(self, request: Request) -> None:
        """It has left the engine."""
        self.drafter.forget(request)
        self._survival.forget(request)

    def metrics(self) -> dict[str, float]:
        """By Prometheus name."""
        positions = enumerate(self._num_accepted_at, 1)
        return {
            "speculation_paused": float(self.is_paused),
            "speculation_pauses_total": self._budget.num_pauses,
            "proposed_tokens_total": self._num_proposed,
            **{f'accepted_tokens_at_total{{position="{at}"}}': num for at, num in positions},
        }

    def _chosen(self, num_running: int, drafts: dict[Request, Draft]) -> Drafts:
        """Of all drafts the tokens that are most likely to be right."""
        hopes: list[tuple[float, int, Request]] = []
        for request, draft in drafts.items():
            survival = self._survival.of(request, draft.confidences)
            hopes += [(-hope, position, request) for position, hope in enumerate(survival)]
        if not hopes:
            return NO_DRAFTS
        self._num_proposed += len(hopes)
        hopes.sort(key=lambda hope: hope[:2])
        num_rows = self._budget.num_rows(num_running, [-hope for hope, _, _ in hopes])
        lens: dict[Request, int] = {}
        for _, _, request in hopes[:num_rows]:
            lens[request] = lens.get(request, 0) + 1
        self._confidences = {request: drafts[request].confidences for request in lens}
        return {request: drafts[request].tokens[:num] for request, num in lens.items()}


def _num_wanted(request: Request) -> int:
    """Tokens that it may still get beside the next, if it does nothing but decode."""
    if not Lineup.fits(request):
        return 0
    return request.ending.num_tokens - len(request.tokens) - 1


def _cut(request: Request, draft: Draft) -> Draft:
    """As far as it may be: without a token that may end the request, for nothing is behind it."""
    tokens, ends = draft.tokens, request.ending.tokens
    num = min(len(tokens), _num_wanted(request))
    num = next((at for at in range(num) if tokens[at] in ends), num)
    if request.matcher is not None and num:
        num = request.matcher.num_allowed(tokens[:num])
    return Draft(tokens[:num], draft.confidences[:num])
