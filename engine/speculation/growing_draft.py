"""Drafts that grow token by token, drawn as the model will draw: with the same penalties, the same
rules and the same noise. Where both think alike they draw the same."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from baton.engine.request.request import Request
from baton.engine.sampling.sampler import draw
from baton.engine.sampling.sampling_plan import SamplingPlan
from baton.engine.speculation.drafter import Draft

LEAST_HOPE = 0.1
"""A draft ends where it is less likely to be right."""


@dataclass(slots=True, eq=False)
class GrowingDraft:
    request: Request
    tokens: list[int] = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)
    hope: float = 1.0
    """That all of it is right. Where noise has its say, too, nobody can tell."""

    def done(self) -> Draft:
        return Draft(self.tokens, self.confidences)


@torch.inference_mode()
def grow(
    drafts: Sequence[GrowingDraft],
    logits: Tensor,
    eos_token_ids: Collection[int],
    *,
    has_own_noise: bool,
) -> list[int]:
    """Draw a token more of each from its row of `logits` [S, V]; the rows of those that go on.

    `has_own_noise`: not the model's, for the published rule.
    """
    rows = [draft.request.row.ahead(draft.tokens) for draft in drafts]
    kept = [number for number, row in enumerate(rows) if row is not None]
    if not kept:
        return []
    if len(kept) < len(rows):
        logits = logits[kept]
    drawn = [row for row in rows if row is not None]
    plan = SamplingPlan(drawn, logits.device, has_own_noise=has_own_noise)
    tokens, are_finite = draw(logits, plan, eos_token_ids)
    said = logits.softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    found = zip(kept, tokens.tolist(), said.tolist(), are_finite.tolist(), strict=True)
    going: list[int] = []
    for number, token, confidence, is_finite in found:
        draft = drafts[number]
        if not draft.request.sampling.temperature:
            draft.hope *= confidence
        if not is_finite or draft.hope < LEAST_HOPE or token in draft.request.ending.tokens:
            continue
        draft.tokens.append(token)
        draft.confidences.append(confidence)
        going.append(number)
    return going
