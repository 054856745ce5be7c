"""One after the other."""

from __future__ import annotations

from collections.abc import Sequence

from baton.router.candidate import Candidate
from baton.router.prompt import Prompt
from baton.router.routing_policy import Held, RoutesAtOnce


class RoundRobin(RoutesAtOnce):
    """Who was chosen the longest time ago comes next."""

    def __init__(self) -> None:
        self._num_placed = 0
        self._turn_by_name: dict[str, int] = {}

    def costs(
        self, prompt: Prompt, candidates: Sequence[Candidate], held: Held, now: float
    ) -> Sequence[float]:
        return [self._turn_by_name.get(candidate.name, 0) for candidate in candidates]

    def placed(self, prompt: Prompt, candidate: Candidate) -> None:
        self._num_placed += 1
        self._turn_by_name[candidate.name] = self._num_placed
