"""To those that have the prefix, until they are saturated (llm-d's affinity filter, then load).

candidates that have at least 80% of the best match, and fewer than 5 requests waiting
    -> of these the one with the fewest requests; if there is none, of all
"""

from __future__ import annotations

from collections.abc import Sequence

from baton.router.candidate import Candidate
from baton.router.prompt import Prompt
from baton.router.routing_policy import Held, RoutesAtOnce

NEARLY = 0.8
"""Of the prompt: who has less of it has no affinity."""
MAX_QUEUE = 5
"""Requests at a replica: with more it is saturated (llm-d's saturation detector's default)."""
FAR = 1 << 20


class StickyUntilSaturated(RoutesAtOnce):
    """In requests; those without affinity cost more than any with it."""

    def costs(
        self, prompt: Prompt, candidates: Sequence[Candidate], held: Held, now: float
    ) -> Sequence[float]:
        most = max(held.tokens, default=0)
        is_near = [
            most > 0 and held.tokens[place] >= NEARLY * most and len(candidate.open) < MAX_QUEUE
            for place, candidate in enumerate(candidates)
        ]
        return [
            len(candidate.open) + (0 if near else FAR)
            for candidate, near in zip(candidates, is_near, strict=True)
        ]
