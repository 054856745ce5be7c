"""A conversation stays where it began; a new one begins where the least is left to compute."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from baton.router.candidate import Candidate
from baton.router.policies.least_tokens import LeastTokens
from baton.router.prompt import Prompt
from baton.router.recent import Recent
from baton.router.routing_policy import Held, RoutesAtOnce

MAX_SESSIONS = 100_000


class SessionSticky(RoutesAtOnce):
    """In seconds to compute; infinite for all but the conversation's own replica."""

    def __init__(self) -> None:
        self._name_by_session: Recent[str, str] = Recent(MAX_SESSIONS)
        self._for_new = LeastTokens()

    def costs(
        self, prompt: Prompt, candidates: Sequence[Candidate], held: Held, now: float
    ) -> Sequence[float]:
        costs = self._for_new.costs(prompt, candidates, held, now)
        home = self._name_by_session.get(prompt.session) if prompt.session else None
        if home is None or all(candidate.name != home for candidate in candidates):
            return costs
        return [
            cost if candidate.name == home else inf
            for candidate, cost in zip(candidates, costs, strict=True)
        ]

    def placed(self, prompt: Prompt, candidate: Candidate) -> None:
        if prompt.session:
            self._name_by_session.put(prompt.session, candidate.name)
