"""To those that have the prefix, until they are saturated (llm-d's affinity filter, then load).

candidates that have at least 80% of the best match, and fewer than 5 requests waiting
    -> of these the one with the fewest requests; if there is none, of all
"""

from __future__ import annotations

import numpy as np

from baton.router.policies.routing_policy import Costs, PrefixHits, RoutesAtOnce
from baton.router.prompt import Prompt
from baton.router.replicas.candidates import Candidates

NEARLY = 0.8
"""The least share of the best match that counts as affinity."""
MAX_QUEUE = 5
"""Requests at a replica: with more it is saturated (llm-d's saturation detector's default)."""
FAR = 1 << 20


class StickyUntilSaturated(RoutesAtOnce):
    """Costs in requests; replicas without affinity cost more than any with it."""

    def costs(self, prompt: Prompt, candidates: Candidates, held: PrefixHits, now: float) -> Costs:
        has_it = (held.tokens > 0) & (held.tokens >= NEARLY * held.tokens.max())
        is_near = has_it & (candidates.num_open < MAX_QUEUE)
        return Costs(candidates.num_open + np.where(is_near, 0, FAR))
