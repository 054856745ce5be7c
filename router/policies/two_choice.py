"""Two candidates by the prompt's prefix, and the better of them (DualMap, arXiv 2602.06502).

    two hashes of the prefix -> two replicas; the one that has more of it, unless its predicted
    time to first token is over the limit: then the one with less to do

Its migration of prompts that wait already, and its scaling of hash rings, are not part of this.
"""

from __future__ import annotations

from math import inf

import numpy as np

from baton.router.policies.prefix_hash import prefix_draw
from baton.router.policies.routing_policy import Costs, PrefixHits, RoutesAtOnce
from baton.router.prompt import Prompt, mixed
from baton.router.replicas.candidates import Candidates

SECOND = 0x9E3779B97F4A7C15
"""Makes another hash of the first."""


class TwoChoice(RoutesAtOnce):
    """Costs in tokens to compute, or in seconds; infinite for all but the two."""

    def __init__(self, slo_ttft_s: float = 5.0) -> None:
        self._slo_ttft_s = slo_ttft_s

    def costs(self, prompt: Prompt, candidates: Candidates, held: PrefixHits, now: float) -> Costs:
        prefix = prefix_draw(prompt)
        pair = list(
            {int(candidates.drawn_by(hash_).argmax()) for hash_ in (prefix, mixed(prefix, SECOND))}
        )
        new_tokens, busy_s = held.new_tokens(prompt), candidates.busy_s(now)
        near = pair[new_tokens[pair].argmin()]
        work_s = candidates.prefill_s(prompt.num_tokens, held.tokens)
        is_late = busy_s[near] + work_s[near] > self._slo_ttft_s
        costs = np.full(len(candidates), inf)
        costs[pair] = busy_s[pair] if is_late else new_tokens[pair]
        return Costs(costs)
