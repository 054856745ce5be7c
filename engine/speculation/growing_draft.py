"""Drafts that grow token by token. Tokens are drawn as the model will draw them, with the same
penalties, output rules and noise, so where drafter and model agree they draw the same token."""

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

MIN_PROBABILITY = 0.1
"""A draft ends where its probability of being right as a whole falls below this."""


@dataclass(slots=True, eq=False)
class GrowingDraft:
    """The draft of one request while its tokens are being drawn."""

    request: Request
    tokens: list[int] = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)
    q: list[Tensor] = field(default_factory=list)
    """The distributions [V] that the tokens were drawn from, for the published rule."""
    probability: float = 1.0
    """Probability that the whole draft is right. Stays 1 for sampled requests, for which it is not
    known."""

    def add(self, token: int, confidence: float, is_finite: bool, q: Tensor | None) -> bool:
        """Add a token, unless the draft ends before it; returns whether it was added. The draft
        ends before a token that may end the request, non-finite logits, or a token with which the
        whole draft is unlikely to be right."""
        if not self.request.sampling.temperature:
            self.probability *= confidence
        if (
            not is_finite
            or self.probability < MIN_PROBABILITY
            or token in self.request.ending.tokens
        ):
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
    """Draw one more token for each draft from its row of `logits` [S, V]. Returns the indices of
    the drafts that go on.

    `has_own_noise`: draw with other noise than the model and note the distributions, as the
    published acceptance rule requires.
    """
    rows = [draft.request.row.row_after(draft.tokens) for draft in drafts]
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
    """Draw all k tokens of each draft from its rows of `logits` [S, k, V], which do not depend on
    the tokens drawn here."""
    if any(draft.request.row.depends_on_output for draft in drafts):
        for depth in range(logits.shape[1]):
            going = grow(drafts, logits[:, depth], eos_token_ids, has_own_noise=has_own_noise)
            if not going:
                return
            if len(going) < len(drafts):
                drafts, logits = [drafts[number] for number in going], logits[going]
        return
    depths = logits.shape[1]
    anything = [0] * (depths - 1)  # only the number of these tokens matters
    rows = [row for draft in drafts for row in draft.request.row.rows_after(anything)]
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
    """Sample from each row of `logits` [S, V]: the token, its probability before noise is added,
    whether all logits are finite and, with `has_own_noise`, the distribution [V] it was drawn from,
    without the row's `endings`."""
    plan = SamplingPlan(rows, logits.device, has_own_noise=has_own_noise)
    (tokens, are_finite), said = draw_and_weigh(logits, plan, eos_token_ids)
    q = chances_of(logits, plan, eos_token_ids, endings) if has_own_noise else {}
    drawn = zip(tokens.tolist(), said.tolist(), are_finite.tolist(), strict=True)
    return [(*each, q.get(row)) for row, each in enumerate(drawn)]
