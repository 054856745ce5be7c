"""One after the other."""

from __future__ import annotations

import numpy as np

from baton.router.policies.routing_policy import Costs, PrefixHits, RoutesAtOnce
from baton.router.prompt import Prompt
from baton.router.replicas.candidate import Candidate
from baton.router.replicas.candidates import Candidates


class RoundRobin(RoutesAtOnce):
    """The replica that was chosen the longest time ago comes next."""

    def __init__(self) -> None:
        self._num_placed = 0
        self._turn_by_name: dict[str, int] = {}

    def costs(self, prompt: Prompt, candidates: Candidates, held: PrefixHits, now: float) -> Costs:
        turns = [self._turn_by_name.get(candidate.name, 0) for candidate in candidates]
        return Costs(np.array(turns, float))

    def placed(self, prompt: Prompt, candidate: Candidate) -> None:
        self._num_placed += 1
        self._turn_by_name[candidate.name] = self._num_placed
