"""The replica with the fewest tokens left to compute, whatever is cached where."""

from __future__ import annotations

from baton.router.policies.routing_policy import Costs, PrefixHits, RoutesAtOnce
from baton.router.prompt import Prompt
from baton.router.replicas.candidates import Candidates


class LeastTokens(RoutesAtOnce):
    """Costs in seconds of the replica's own speed: what is half computed counts half."""

    def costs(self, prompt: Prompt, candidates: Candidates, held: PrefixHits, now: float) -> Costs:
        return Costs(candidates.busy_s(now))
