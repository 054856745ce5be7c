"""Blocks to prefill, plus blocks to decode from: NVIDIA Dynamo's KV router.

    cost = overlap weight * (tokens to prefill there, this prompt's included) / block size
         + blocks in use there, this prompt's included

as its documentation gives it ("Router design", 1.3); weight 1 and no temperature are its defaults.
A half-computed prompt counts whole until its first token.
"""

from __future__ import annotations

from baton.router.policies.routing_policy import Costs, PrefixHits, RoutesAtOnce
from baton.router.prompt import Prompt
from baton.router.replicas.candidates import Candidates


class Additive(RoutesAtOnce):
    """Costs in blocks."""

    def costs(self, prompt: Prompt, candidates: Candidates, held: PrefixHits, now: float) -> Costs:
        blocks = max(prompt.num_blocks, 1)
        block_size = max(prompt.num_tokens / blocks, 1.0)
        num_to_prefill = candidates.num_open_tokens + held.new_tokens(prompt)
        return Costs(num_to_prefill / block_size + candidates.num_open_blocks + blocks)
