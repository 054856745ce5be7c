"""Blocks to prefill, plus blocks to decode from: NVIDIA Dynamo's KV router.

    cost = overlap weight * (tokens to prefill there, this prompt's included) / block size
         + blocks in use there, this prompt's included

as its documentation gives it ("Router design", 1.3); weight 1 and no temperature are its defaults.
What is half computed counts whole until its first token.
"""

from __future__ import annotations

from collections.abc import Sequence

from baton.router.candidate import Candidate
from baton.router.prompt import Prompt
from baton.router.routing_policy import Held, RoutesAtOnce


class Additive(RoutesAtOnce):
    """In blocks."""

    def costs(
        self, prompt: Prompt, candidates: Sequence[Candidate], held: Held, now: float
    ) -> Sequence[float]:
        blocks = max(prompt.num_blocks, 1)
        block_size = max(prompt.num_tokens / blocks, 1.0)
        return [
            (candidate.num_open_tokens + held.new_tokens(prompt, place)) / block_size
            + candidate.num_open_blocks
            + blocks
            for place, candidate in enumerate(candidates)
        ]
