"""Any of them: what a load balancer without a view does."""

from __future__ import annotations

import numpy as np

from baton.router.policies.routing_policy import Costs, PrefixHits, RoutesAtOnce
from baton.router.prompt import Prompt
from baton.router.replicas.candidates import Candidates


class RandomChoice(RoutesAtOnce):
    """All cost the same, and equals are drawn by the prompt."""

    def costs(self, prompt: Prompt, candidates: Candidates, held: PrefixHits, now: float) -> Costs:
        return Costs(np.zeros(len(candidates)))
