"""The tokens that a prefill replica lends to gateways as credit, and the gateways that it informs.

    budget    as many as keep it busy from one prompt to the next: `MIN_CHUNKS` passes, or
              `TARGET_QUEUE_S` of work by its own step times, whichever is more; but no more than
              could be held until decode replicas have fetched it, because prompts beyond that
              would be refused when their turn comes
    used      what is yet to be computed of the prompts that came by a gateway's credit

A gateway counts a prompt until it has the first token, so what is computed of it meanwhile is added
to its credit: the next prompt can be on its way before this one is over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from baton.core.ids import Epoch
from baton.core.replicas import Capacity, Demand
from baton.core.step_times import StepTimes
from baton.prefill_service.open_prompts import OpenPrompts
from baton.prefill_service.session import PrefillSession
from baton.replica_core.credits import Credits

MIN_CHUNKS = 2
TARGET_QUEUE_S = 0.25


class Lending:
    """Belongs to the event loop."""

    def __init__(
        self,
        prompts: OpenPrompts,
        max_chunk: int,
        room: Callable[[], int | None] = lambda: None,
    ) -> None:
        """`room`: tokens whose KV could be held at this moment; None where nothing bounds them."""
        self._prompts = prompts
        self._max_chunk = max_chunk
        self._room = room
        self._budget = lending_budget(StepTimes(), max_chunk, prompts.max_queued_tokens)
        self._credits: Credits[PrefillSession] = Credits(self._budget)
        self._sessions: list[PrefillSession] = []

    @property
    def num_sessions(self) -> int:
        return len(self._sessions)

    def join(self, session: PrefillSession) -> None:
        """A gateway has one stream: an earlier one of its own is over, though not ended yet."""
        for earlier in [
            one for one in self._sessions if one.gateway_epoch == session.gateway_epoch
        ]:
            earlier.end()
            self.leave(earlier)
        self._sessions.append(session)
        self._credits.join(session)

    def leave(self, session: PrefillSession) -> None:
        """All that was lent to it is returned. Idempotent."""
        if session not in self._sessions:
            return
        session.close()
        self._sessions.remove(session)
        self._credits.leave(session)

    def observe(self, session: PrefillSession, demand: Demand) -> None:
        self._credits.observe(session, demand=demand.num_tokens, credit_id=demand.credit_id)

    def learn(self, times: StepTimes) -> None:
        """How long steps take, by now."""
        limit = self._prompts.max_queued_tokens
        self._budget = lending_budget(times, self._max_chunk, limit)

    def publish(self, capacity: Capacity, now: float) -> None:
        """Notify every gateway, with its credit."""
        room = self._room()
        self._credits.budget = self._budget if room is None else max(1, min(self._budget, room))
        pending: Counter[Epoch | None] = Counter()
        computed: Counter[Epoch | None] = Counter()
        for prompt in self._prompts:
            pending[prompt.message.gateway_epoch] += prompt.num_queued_tokens
            computed[prompt.message.gateway_epoch] += prompt.num_computed_tokens
        used = {session: pending[session.gateway_epoch] for session in self._sessions}
        for session, lent in self._credits.lend(used, now).items():
            num = 0 if capacity.is_draining else lent.num + computed[session.gateway_epoch]
            session.put_capacity(replace(capacity, credit_tokens=num, credit_id=lent.id))

    def end(self) -> None:
        for session in self._sessions:
            session.end()


def lending_budget(times: StepTimes, max_chunk: int, max_queued_tokens: int) -> int:
    """Tokens to be lent to all gateways together."""
    budget = MIN_CHUNKS * max_chunk
    if times.num_prompt_steps:
        tokens_per_s = max_chunk / times.prefill_s(max_chunk, 0, max_chunk)
        budget = max(budget, int(TARGET_QUEUE_S * tokens_per_s))
    return max(1, min(budget, max_queued_tokens))
