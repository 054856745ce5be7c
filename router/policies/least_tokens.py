"""Where the least is left to compute, whoever has the prompt's beginning."""

from __future__ import annotations

from collections.abc import Sequence

from baton.router.candidate import Candidate
from baton.router.prompt import Prompt
from baton.router.routing_policy import Held, RoutesAtOnce


class LeastTokens(RoutesAtOnce):
    """In seconds of the replica's own speed: what is half computed counts half."""

    def costs(
        self, prompt: Prompt, candidates: Sequence[Candidate], held: Held, now: float
    ) -> Sequence[float]:
        return [candidate.busy_s(now) for candidate in candidates]
