"""Where most of the prompt is cached; among equals, where the fewest requests are."""

from __future__ import annotations

from collections.abc import Sequence

from baton.router.candidate import Candidate
from baton.router.prompt import Prompt
from baton.router.routing_policy import Held, RoutesAtOnce

MANY_REQUESTS = 1 << 20


class LongestMatch(RoutesAtOnce):
    """In tokens to compute, then requests. Load never outweighs a token: it piles up on one."""

    def costs(
        self, prompt: Prompt, candidates: Sequence[Candidate], held: Held, now: float
    ) -> Sequence[float]:
        return [
            held.new_tokens(prompt, place) * MANY_REQUESTS + len(candidate.open)
            for place, candidate in enumerate(candidates)
        ]
