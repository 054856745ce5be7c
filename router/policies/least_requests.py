"""Chooses the replica with the fewest waiting and running prompts, as HTTP load balancers do."""

from __future__ import annotations

from baton.router.policies.routing_policy import Costs, PrefixHits, RoutesAtOnce
from baton.router.prompt import Prompt
from baton.router.replicas.candidates import Candidates


class LeastRequests(RoutesAtOnce):
    """Costs in requests: long prompts count as much as short ones."""

    def costs(self, prompt: Prompt, candidates: Candidates, held: PrefixHits, now: float) -> Costs:
        return Costs(candidates.num_open)
