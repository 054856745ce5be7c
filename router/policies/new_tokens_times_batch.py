"""New prefill tokens times batch size (LMetric, Zhang et al. 2026, arXiv 2603.15202).

    cost = (tokens queued there + tokens of this prompt it lacks) * (requests there + 1)

A product needs no weights between its two indicators: they cancel in the comparison.
"""

from __future__ import annotations

from baton.router.policies.routing_policy import Costs, PrefixHits, RoutesAtOnce
from baton.router.prompt import Prompt
from baton.router.replicas.candidates import Candidates


class NewTokensTimesBatch(RoutesAtOnce):
    """Costs in tokens times requests."""

    def costs(self, prompt: Prompt, candidates: Candidates, held: PrefixHits, now: float) -> Costs:
        num_tokens = candidates.num_open_tokens + held.new_tokens(prompt)
        return Costs(num_tokens * (candidates.num_open + 1))
