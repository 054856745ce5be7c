"""The default: the least delay, of this prompt and of those that it delays.

    cost = wait + price * work + harm                                              (seconds)

    wait     until the candidate has computed what it was sent, and who goes before in line
    work     to compute what it lacks of the prompt, by the candidate's own step times
    price    1 + scarcity * prompts in line a candidate: work that another would not have to do
             delays everybody who waits, so the longer the line, the more a cached prefix is worth
    harm     work * prompts in line that would go after it

Prompts are bound late (`line.py`): they wait in the gateway's line, not in a replica's.
"""

from __future__ import annotations

from collections.abc import Sequence

from baton.router.candidate import Candidate
from baton.router.prompt import Prompt
from baton.router.routing_policy import Held
from baton.router.turns import Turns

SCARCITY = 3.0
"""Best of 0 to 6 on Mooncake's conversations at 130% load; flat from 1 on."""


class Cost:
    """In seconds."""

    def __init__(self, turns: Turns | None = None) -> None:
        self.turns = turns

    def costs(
        self, prompt: Prompt, candidates: Sequence[Candidate], held: Held, now: float
    ) -> Sequence[float]:
        num_waiting = sum(len(candidate.waiting) for candidate in candidates)
        price = 1.0 + SCARCITY * num_waiting / len(candidates)
        costs: list[float] = []
        for candidate, num_held in zip(candidates, held.tokens, strict=True):
            work_s = candidate.speed.prefill_s(
                prompt.num_tokens, min(num_held, prompt.num_tokens - 1)
            )
            cost = candidate.busy_s(now) + price * work_s
            if candidate.waiting and self.turns is not None:
                due_s = self.turns.due_s(prompt, work_s)
                cost += candidate.ahead_s(due_s) + candidate.num_behind(due_s) * work_s
            costs.append(cost)
        return costs

    def placed(self, prompt: Prompt, candidate: Candidate) -> None:
        """Keep nothing: what is cached and booked says it all."""

