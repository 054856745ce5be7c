"""Two candidates by the prompt's prefix, and the better of them (DualMap, arXiv 2602.06502).

    two hashes of the prefix -> two replicas; the one that has more of it, unless its predicted
    time to first token is over the limit: then the one with less to do

Its migration of prompts that wait already, and its scaling of hash rings, are not part of this.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from baton.router.candidate import Candidate
from baton.router.policies.prefix_hash import prefix_draw
from baton.router.prompt import Prompt, mixed
from baton.router.routing_policy import Held, RoutesAtOnce

SECOND = 0x9E3779B97F4A7C15
"""Makes another hash of the first."""


class TwoChoice(RoutesAtOnce):
    """In tokens to compute, or in seconds; infinite for all but the two."""

    def __init__(self, slo_ttft_s: float = 5.0) -> None:
        self._slo_ttft_s = slo_ttft_s

    def costs(
        self, prompt: Prompt, candidates: Sequence[Candidate], held: Held, now: float
    ) -> Sequence[float]:
        prefix = prefix_draw(prompt)
        pair = {
            max(range(len(candidates)), key=lambda place: mixed(hash_, candidates[place].draw))
            for hash_ in (prefix, mixed(prefix, SECOND))
        }
        near = min(pair, key=lambda place: held.new_tokens(prompt, place))
        predicted_s = candidates[near].busy_s(now) + candidates[near].speed.prefill_s(
            prompt.num_tokens, held.tokens[near]
        )
        costs = [inf] * len(candidates)
        for place in pair:
            is_late = predicted_s > self._slo_ttft_s
            new_tokens = held.new_tokens(prompt, place)
            costs[place] = candidates[place].busy_s(now) if is_late else new_tokens
        return costs
