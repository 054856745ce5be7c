"""Drafts that grow token by token, drawn as the model will draw: with the same penalties, the same
rules and the same noise. Where drafter and model agree they draw the same token.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from baton.engine.request.request import Request
from baton.engine.sampling.sampler import chances_of, draw_and_weigh
from baton.engine.sampling.sampling_plan import SamplingPlan
from baton.engine.sampling.sampling_row import SamplingRow
from baton.engine.speculation.drafter import Draft

LEAST_HOPE = 0.1
"""A draft ends where it is less likely to be right."""


@dataclass(slots=True, eq=False)
class GrowingDraft:
    request: Request
    tokens: list[int] = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)
    q: list[Tensor] = field(default_factory=list)
    """[V] each: what they were drawn from, if that is told."""
    hope: float = 1.0
    """Probability that the whole draft is right; nobody can tell for sampled requests."""

    def add(self, token: int, confidence: float, is_finite: bool, q: Tensor | None) -> bool:
        """Whether it goes on with this token."""
        if not self.request.sampling.temperature:
            self.hope *= confidence
        if not is_finite or self.hope < LEAST_HOPE or token in self.request.ending.tokens:
            return False
        self.tokens.append(token)
        self.confidences.append(confidence)
        if q is not None:
            self.q.append(q)
        return True

    def done(self) -> Draft:
        return Draft(self.tokens, self.confidences, self.q)


@torch.inference_mode()
def grow(
    drafts: Sequence[GrowingDraft],
    logits: Tensor,
    eos_token_ids: Collection[int],
    *,
    has_own_noise: bool,
) -> list[int]:
    """Draw a token more of each from its row of `logits` [S, V]; the rows of those that go on.

    `has_own_noise`: not the model's, for the published rule, which is told what is drawn from.
    """
    rows = [draft.request.row.ahead(draft.tokens) for draft in drafts]
    kept = [number for number, row in enumerate(rows) if row is not None]
    if not kept:
        return []
    if len(kept) < len(rows):
        logits = logits[kept]
    endings = [drafts[number].request.ending.tokens for number in kept]
    drawn = _draw(
        logits, [row for row in rows if row is not None], endings, eos_token_ids, has_own_noise
    )
    return [number for number, each in zip(kept, drawn, strict=True) if drafts[number].add(*each)]


@torch.inference_mode()
def grow_at_once(
    drafts: Sequence[GrowingDraft],
    logits: Tensor,
    eos_token_ids: Collection[int],
    *,
    has_own_noise: bool,
) -> None:
    """Draw all tokens of each from its rows of `logits` [S, k, V], which depend on no token that is
    drawn."""
    if any(draft.request.row.depends_on_output for draft in drafts):
        for depth in range(logits.shape[1]):
            going = grow(drafts, logits[:, depth], eos_token_ids, has_own_noise=has_own_noise)
            if not going:
                return
            if len(going) < len(drafts):
                drafts, logits = [drafts[number] for number in going], logits[going]
        return
    depths = logits.shape[1]
    anything = [0] * (depths - 1)  # only how many there are is asked
    rows = [row for draft in drafts for row in draft.request.row.behind(anything)]
    endings = [draft.request.ending.tokens for draft in drafts for _ in range(depths)]
    drawn = _draw(logits.flatten(0, 1), rows, endings, eos_token_ids, has_own_noise)
    for first, draft in enumerate(drafts):
        for each in drawn[first * depths : (first + 1) * depths]:
            if not draft.add(*each):
                break


def _draw(
    logits: Tensor,
    rows: Sequence[SamplingRow],
    endings: Sequence[Collection[int]],
    eos_token_ids: Collection[int],
    has_own_noise: bool,
) -> list[tuple[int, float, bool, Tensor | None]]:
    """Sampled from each row of `logits` [S, V]: a token, its probability before noise is added,
    whether all logits are finite and, if its noise is its own, what it was drawn from [V],
    its `endings` left out."""
    plan = SamplingPlan(rows, logits.device, has_own_noise=has_own_noise)
    (tokens, are_finite), said = draw_and_weigh(logits, plan, eos_token_ids)
    q = chances_of(logits, plan, eos_token_ids, endings) if has_own_noise else {}
    drawn = zip(tokens.tolist(), said.tolist(), are_finite.tolist(), strict=True)
    return [(*each, q.get(row)) for row, each in enumerate(drawn)]
