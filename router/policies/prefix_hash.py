"""The replica that the prompt's first tokens hash to (consistent hashing, by highest weight).

Thaler & Ravishankar 1998: each pair of prefix and replica draws a number, the largest wins; a
replica that comes or goes moves only the prompts that it gets or had.
"""

from __future__ import annotations

from baton.router.policies.routing_policy import Costs, PrefixHits, RoutesAtOnce
from baton.router.prompt import Prompt, drawn
from baton.router.replicas.candidates import Candidates

NUM_BLOCKS = 2
"""Leading blocks of the prompt that are hashed: one alone is the same system prompt for
everybody."""


class PrefixHash(RoutesAtOnce):
    """Costs in negative draws; load does not count."""

    def costs(self, prompt: Prompt, candidates: Candidates, held: PrefixHits, now: float) -> Costs:
        return Costs(-candidates.drawn_by(prefix_draw(prompt)).astype(float))


def prefix_draw(prompt: Prompt) -> int:
    """Equal for prompts that begin alike; a prompt shorter than a block is all its own."""
    if not prompt.names:
        return prompt.draw
    return drawn(prompt.names[min(NUM_BLOCKS, len(prompt.names)) - 1].hex())
