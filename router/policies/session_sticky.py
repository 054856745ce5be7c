"""A conversation stays where it began; a new one begins where the least is left to compute."""

from __future__ import annotations

from math import inf

import numpy as np

from baton.router.policies.least_tokens import LeastTokens
from baton.router.policies.routing_policy import Costs, PrefixHits, RoutesAtOnce
from baton.router.prompt import Prompt
from baton.router.recent import Recent
from baton.router.replicas.candidate import Candidate
from baton.router.replicas.candidates import Candidates

MAX_SESSIONS = 100_000


class SessionSticky(RoutesAtOnce):
    """Costs in seconds to compute; infinite for all but the conversation's own replica."""

    def __init__(self) -> None:
        self._name_by_session: Recent[str, str] = Recent(MAX_SESSIONS)
        self._for_new = LeastTokens()

    def costs(self, prompt: Prompt, candidates: Candidates, held: PrefixHits, now: float) -> Costs:
        costs = self._for_new.costs(prompt, candidates, held, now)
        home = self._name_by_session.get(prompt.session) if prompt.session else None
        is_home = np.array([candidate.name == home for candidate in candidates])
        return Costs(np.where(is_home, costs.total, inf)) if is_home.any() else costs

    def placed(self, prompt: Prompt, candidate: Candidate) -> None:
        if prompt.session:
            self._name_by_session.put(prompt.session, candidate.name)
