"""The default: the least delay, of this prompt, of those that it delays, and of those to come.

    cost = wait + price * work * charged + harm + balance                          (seconds)

    wait      until the candidate has computed what it was sent, and who goes before in line
    work      to compute what it lacks of the prompt, by the candidate's own step times
    charged   the share of it that is charged to this prompt: what others will ask for there, too,
              is computed once for all of them (`heat.py`), so hot prefixes are copied on purpose
    price     1.1 + 3 * prompts in line a candidate: work that another would not have to do delays
              everybody who waits, so the longer the line, the more a cached prefix is worth; of
              equal delays, the one with less work
    harm      work * (prompts in line that would go after it + requests that decode there)
    balance   half a typical prompt's work, times by how much more than the mean the candidate was
              sent lately: conversations that begin here come back here. While all were
              sent few, it counts little

Prompts are bound late (`line.py`): they wait in the gateway's line, not in a replica's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from baton.router.candidate import Candidate
from baton.router.heat import Heat
from baton.router.prompt import Prompt
from baton.router.routing_policy import Held
from baton.router.turns import Turns


@dataclass(frozen=True, slots=True, kw_only=True)
class CostWeights:
    """Chosen on Mooncake's conversations and six loads of our own; none of them is sharp."""

    scarcity: float = 3.0
    """Tried: 0 to 6."""
    balance: float = 0.5
    """Tried: 0 to 3."""
    shares_hot: bool = True
    """Whether what many prompts have in common is charged to all of them."""
    is_late: bool = True


DEFAULTS = CostWeights()
BASE_PRICE = 1.1
FEW = 32.0
"""Prompts a candidate: fewer say little of who has too much."""


class Terms(NamedTuple):
    """What one candidate costs one prompt, in seconds."""

    wait_s: float
    work_s: float
    charged_s: float
    """Price, work and share multiplied."""
    harm_s: float
    balance_s: float

    @property
    def total_s(self) -> float:
        return self.wait_s + self.charged_s + self.harm_s + self.balance_s


class Cost:
    """In seconds."""

    def __init__(self, weights: CostWeights = DEFAULTS) -> None:
        self._weights = weights
        self._turns = Turns()
        self._heat = Heat()

    @property
    def turns(self) -> Turns | None:
        return self._turns if self._weights.is_late else None

    def costs(
        self, prompt: Prompt, candidates: Sequence[Candidate], held: Held, now: float
    ) -> Sequence[float]:
        return [terms.total_s for terms in self.terms(prompt, candidates, held, now)]

    def terms(
        self, prompt: Prompt, candidates: Sequence[Candidate], held: Held, now: float
    ) -> list[Terms]:
        """The same, taken apart."""
        weights = self._weights
        num_waiting = sum(len(candidate.waiting) for candidate in candidates)
        price = BASE_PRICE + weights.scarcity * num_waiting / len(candidates)
        sharers = len(candidates) if weights.shares_hot else 0
        charge = self._heat.charge(prompt, sharers, now)
        charged_tokens = charge.before(prompt.num_tokens)
        recent = [candidate.recent(now) for candidate in candidates]
        mean_s = sum(seconds for seconds, _ in recent) / len(recent)
        mean_count = sum(count for _, count in recent) / len(recent)
        unit_s = weights.balance * self._turns.typical_s * min(mean_count / FEW, 1.0)
        found: list[Terms] = []
        for candidate, num_held, (recent_s, _) in zip(candidates, held.tokens, recent, strict=True):
            cached = min(num_held, prompt.num_tokens - 1)
            work_s = candidate.speed.prefill_s(prompt.num_tokens, cached)
            charged = (charged_tokens - charge.before(cached)) / (prompt.num_tokens - cached)
            wait_s, num_harmed = candidate.busy_s(now), candidate.num_running
            if candidate.waiting:
                due_s = self._turns.due_s(prompt, work_s, candidate.line_s)
                wait_s += candidate.ahead_s(due_s)
                num_harmed += candidate.num_behind(due_s)
            found.append(
                Terms(
                    wait_s=wait_s,
                    work_s=work_s,
                    charged_s=price * work_s * charged,
                    harm_s=num_harmed * work_s,
                    balance_s=unit_s * (recent_s / mean_s - 1.0) if mean_s else 0.0,
                )
            )
        return found

    def explain(
        self,
        prompt: Prompt,
        candidates: Sequence[Candidate],
        held: Held,
        now: float,
        places: Sequence[int],
    ) -> Sequence[Mapping[str, float]]:
        """Each in seconds."""
        terms = self.terms(prompt, candidates, held, now)
        return [terms[place]._asdict() for place in places]

    def placed(self, prompt: Prompt, candidate: Candidate) -> None:
        """Learn what is typical, and what conversations begin with."""
        self._turns.hear(candidate.speed.prefill_s(prompt.num_tokens, 0))
        if prompt.is_first_turn:
            self._heat.hear(prompt, prompt.arrived_s)
