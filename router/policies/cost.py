"""The default: the least delay, of this prompt, of those that it delays, and of those to come.

    cost = wait + price * work * charged + harm + balance + surplus                (seconds)

    wait      until the candidate has computed what it was sent, and who goes before in line
    work      to compute what it lacks of the prompt, by the candidate's own step times
    charged   the share of it that is charged to this prompt: what others will ask for there, too,
              is computed once for all of them (`heat.py`), so hot prefixes are copied on purpose
    price     1.1 + 3 * prompts in line a candidate: work that another would not have to do delays
              everybody who waits, so the longer the line, the more a cached prefix is worth; of
              equal delays, the one with less work
    harm      work * (prompts in line that would go after it + requests that decode there)
    balance   two typical prompts' work, times by how much more than the mean the candidate was
              sent lately: conversations that begin here come back here. While all were sent few,
              it counts nothing
    surplus   30 * work * by how much more than the mean the candidate was sent, half of this work
              included: where too much is, work is dear, so those conversations leave that lose
              little by it. While few conversations began lately, it counts little

Both count the less the more wait: what waits evens out by itself.

Prompts are bound late (`line.py`): they wait in the gateway's line, not in a replica's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from baton.router.candidate import Candidate
from baton.router.candidates import Candidates
from baton.router.columns import RECENT_HALF_LIFE_S, Numbers, mean
from baton.router.heat import Heat
from baton.router.prompt import Prompt
from baton.router.routing_policy import Costs, Held
from baton.router.turns import Turns


@dataclass(frozen=True, slots=True, kw_only=True)
class CostWeights:
    """Chosen on Mooncake's conversations and six loads of our own; none of them is sharp."""

    scarcity: float = 3.0
    """Tried: 0 to 6."""
    balance: float = 2.0
    """Tried: 0 to 3."""
    evenness: float = 30.0
    """Tried: 0 to 100."""
    shares_hot: bool = True
    """Whether what many prompts have in common is charged to all of them."""
    is_late: bool = True


DEFAULTS = CostWeights()
BASE_PRICE = 1.1
FEW, MANY = 8.0, 32.0
"""Prompts a candidate: few say nothing of who has too much, so many more all there is to say."""
FEW_BEGUN = 4.0
"""Conversations a candidate, besides one: fewer can not be spread evenly, and had better stay where
they are."""


class Terms(NamedTuple):
    """What each candidate costs one prompt, in seconds."""

    wait_s: Numbers
    work_s: Numbers
    charged_s: Numbers
    """Price, work and share multiplied."""
    harm_s: Numbers
    balance_s: Numbers
    surplus_s: Numbers

    @property
    def total_s(self) -> Numbers:
        return self.wait_s + self.charged_s + self.harm_s + self.balance_s + self.surplus_s


class Cost:
    """In seconds."""

    def __init__(self, weights: CostWeights = DEFAULTS) -> None:
        self._weights = weights
        self._turns = Turns()
        self._heat = Heat()
        self._num_begun = self._begun_at_s = 0.0

    @property
    def turns(self) -> Turns | None:
        return self._turns if self._weights.is_late else None

    def costs(self, prompt: Prompt, candidates: Candidates, held: Held, now: float) -> Costs:
        terms = self.terms(prompt, candidates, held, now)
        return Costs(terms.total_s, terms._asdict())

    def terms(self, prompt: Prompt, candidates: Candidates, held: Held, now: float) -> Terms:
        """The same, taken apart."""
        work_s = candidates.prefill_s(prompt.num_tokens, held.tokens)
        wait_s, num_harmed, in_line = candidates.busy_s(now), candidates.num_running, 0.0
        if candidates.has_lines:
            due_s = self._turns.dues_s(prompt, work_s, candidates.line_s)
            ahead_s, num_behind = candidates.ahead(due_s)
            wait_s, num_harmed = wait_s + ahead_s, num_harmed + num_behind
            in_line = mean(candidates.num_waiting)
        price = BASE_PRICE + self._weights.scarcity * in_line
        shares = candidates.recent_share()
        balance_s = self._balance_unit_s(candidates, now) * (shares - 1.0)
        surplus_s = self._surplus(candidates, shares, work_s, now) * work_s
        if in_line:
            balance_s /= 1.0 + in_line
            surplus_s /= 1.0 + in_line
        return Terms(
            wait_s=wait_s,
            work_s=work_s,
            charged_s=price * work_s * self._charged(prompt, candidates, held, now),
            harm_s=num_harmed * work_s,
            balance_s=balance_s,
            surplus_s=surplus_s,
        )

    def _charged(
        self, prompt: Prompt, candidates: Candidates, held: Held, now: float
    ) -> Numbers | float:
        """The share of the work that is this prompt's alone."""
        sharers = len(candidates) if self._weights.shares_hot else 0
        charge = self._heat.charge(prompt, sharers, now)
        if charge.is_whole:
            return 1.0
        cached = np.minimum(held.tokens, prompt.num_tokens - 1)
        share: Numbers = (charge.total - charge.before(cached)) / (prompt.num_tokens - cached)
        return share

    def _balance_unit_s(self, candidates: Candidates, now: float) -> float:
        """What is charged to one that was sent twice the mean."""
        is_telling = min(max(candidates.mean_recent(now) - FEW, 0.0) / MANY, 1.0)
        return self._weights.balance * self._turns.typical_s * is_telling

    def _surplus(
        self, candidates: Candidates, shares: Numbers, work_s: Numbers, now: float
    ) -> Numbers:
        """What is charged besides for a second of work, where this much makes it too much."""
        num_besides = self._begun(now) / len(candidates) - 1.0
        is_telling = min(max(num_besides, 0.0) / FEW_BEGUN, 1.0)
        mean_s = candidates.mean_recent_s(now)
        if not mean_s or not is_telling:
            return np.zeros(len(candidates))
        over = np.maximum(shares + work_s / (2.0 * mean_s) - 1.0, 0.0)
        return self._weights.evenness * is_telling * over

    def placed(self, prompt: Prompt, candidate: Candidate) -> None:
        """Learn what is typical, and what conversations begin with."""
        self._turns.hear(candidate.speed.prefill_s(prompt.num_tokens, 0))
        if prompt.is_first_turn:
            self._num_begun = self._begun(prompt.arrived_s) + 1.0
            self._begun_at_s = prompt.arrived_s
            self._heat.hear(prompt, prompt.arrived_s)

    def _begun(self, now: float) -> float:
        """Conversations that began lately: older ones count less and less."""
        return self._num_begun * math.exp2((self._begun_at_s - now) / RECENT_HALF_LIFE_S)
