"""Where the fewest prompts wait or are computed: the usual choice of HTTP load balancers."""

from __future__ import annotations

from collections.abc import Sequence

from baton.router.candidate import Candidate
from baton.router.prompt import Prompt
from baton.router.routing_policy import Held, RoutesAtOnce


class LeastRequests(RoutesAtOnce):
    """In requests: long prompts count as much as short ones."""

    def costs(
        self, prompt: Prompt, candidates: Sequence[Candidate], held: Held, now: float
    ) -> Sequence[float]:
        return [len(candidate.open) for candidate in candidates]
