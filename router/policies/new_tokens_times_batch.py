"""New prefill tokens times batch size (LMetric, Zhang et al. 2026, arXiv 2603.15202).

    cost = (tokens queued there + tokens of this prompt it lacks) * (requests there + 1)

A product needs no weights between its two indicators: they cancel in the comparison.
"""

from __future__ import annotations

from collections.abc import Sequence

from baton.router.candidate import Candidate
from baton.router.prompt import Prompt
from baton.router.routing_policy import Held, RoutesAtOnce


class NewTokensTimesBatch(RoutesAtOnce):
    """In tokens times requests."""

    def costs(
        self, prompt: Prompt, candidates: Sequence[Candidate], held: Held, now: float
    ) -> Sequence[float]:
        return [
            (candidate.num_open_tokens + held.new_tokens(prompt, place)) * (len(candidate.open) + 1)
            for place, candidate in enumerate(candidates)
        ]
