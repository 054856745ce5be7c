"""Chooses the replica with the longest cached prefix; on ties, the one with the fewest requests."""

from __future__ import annotations

from baton.router.policies.routing_policy import Costs, PrefixHits, RoutesAtOnce
from baton.router.prompt import Prompt
from baton.router.replicas.candidates import Candidates

MANY_REQUESTS = 1 << 20


class LongestMatch(RoutesAtOnce):
    """Costs in tokens to compute, then requests. Load never outweighs a token: it piles up on
    one."""

    def costs(self, prompt: Prompt, candidates: Candidates, held: PrefixHits, now: float) -> Costs:
        return Costs(held.new_tokens(prompt) * MANY_REQUESTS + candidates.num_open)
