"""Any of them: what a load balancer without a view does."""

from __future__ import annotations

from collections.abc import Sequence

from baton.router.candidate import Candidate
from baton.router.prompt import Prompt
from baton.router.routing_policy import Held, RoutesAtOnce


class RandomChoice(RoutesAtOnce):
    """All cost the same, and equals are drawn by the prompt."""

    def costs(
        self, prompt: Prompt, candidates: Sequence[Candidate], held: Held, now: float
    ) -> Sequence[float]:
        return [0.0] * len(candidates)
