"""Which of several replicas is to compute a prompt: what every policy answers.

    prompt, candidates, what each has of the prompt --costs--> one number a candidate

The smallest wins; equals are drawn by the prompt, so that they are filled evenly. A policy's unit
is its own: seconds, tokens, requests. One that has `turns` binds late: its prompts wait in the
gateway's line until the candidate of their choice is about to be free (`line.py`); the others' are
sent at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from baton.router.candidate import Candidate
from baton.router.prompt import Prompt, mixed
from baton.router.turns import Turns


@dataclass(frozen=True, slots=True)
class Held:
    """What the candidates have of one prompt."""

    tokens: Sequence[int]
    """Leading tokens, by candidate."""

    def new_tokens(self, prompt: Prompt, place: int) -> int:
        """Tokens that the candidate at `place` has to compute: at least the last."""
        return max(prompt.num_tokens - self.tokens[place], 1)


class RoutingPolicy(Protocol):
    @property
    def turns(self) -> Turns | None:
        """Who goes first of those in the gateway's line. None: nobody waits there."""

    def costs(
        self, prompt: Prompt, candidates: Sequence[Candidate], held: Held, now: float
    ) -> Sequence[float]:
        """One a candidate; infinite where it must not go unless it may go nowhere else."""

    def explain(
        self,
        prompt: Prompt,
        candidates: Sequence[Candidate],
        held: Held,
        now: float,
        places: Sequence[int],
    ) -> Sequence[Mapping[str, float]]:
        """What the costs of those at `places` are made of, by name; empty for one without parts."""

    def placed(self, prompt: Prompt, candidate: Candidate) -> None:
        """Hear where `prompt` went."""


class RoutesAtOnce:
    """What most policies share: they send at once, and keep nothing of what they have placed."""

    turns: Turns | None = None

    def explain(
        self,
        prompt: Prompt,
        candidates: Sequence[Candidate],
        held: Held,
        now: float,
        places: Sequence[int],
    ) -> Sequence[Mapping[str, float]]:
        """Say nothing: the cost is one number."""
        return [{}] * len(places)

    def placed(self, prompt: Prompt, candidate: Candidate) -> None:
        """Forget it."""


def cheapest(prompt: Prompt, candidates: Sequence[Candidate], costs: Sequence[float]) -> int:
    """The place of the candidate that wins. Raises ValueError if there is none."""
    least = min(costs)
    equals = [place for place, cost in enumerate(costs) if cost <= least]
    if len(equals) == 1:
        return equals[0]
    return min(equals, key=lambda place: mixed(prompt.draw, candidates[place].draw))
