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


TERMS = ("work_s", "wait_s", "charged_s", "harm_s", "balance_s", "surplus_s")
"""The first is what others are made of; the rest add up to the cost. Price, work and share
multiplied are what is charged."""


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
        """Their terms are rows of one matrix, which is written once."""
        terms = np.empty((len(TERMS), len(candidates)))
        work_s, wait_s, charged_s, harm_s, balance_s, surplus_s = terms
        work_s[:] = candidates.prefill_s(prompt.num_tokens, held.tokens)
        wait_s[:] = candidates.busy_s(now)
        num_harmed, in_line = candidates.num_running, 0.0
        if candidates.has_lines:
            due_s = self._turns.dues_s(prompt, work_s, candidates.line_s)
            ahead_s, num_behind = candidates.ahead(due_s)
            wait_s += ahead_s
            num_harmed = num_harmed + num_behind
            in_line = mean(candidates.num_waiting)
        np.multiply(work_s, BASE_PRICE + self._weights.scarcity * in_line, out=charged_s)
        self._share_hot(charged_s, prompt, candidates, held, now)
        np.multiply(num_harmed, work_s, out=harm_s)
        mean_s = candidates.mean_recent_s(now)
        shares = candidates.recent_share()
        np.subtract(shares, 1.0, out=balance_s)
        balance_s *= self._balance_unit_s(candidates, now)
        self._surplus(surplus_s, shares, work_s, mean_s, now)
        if in_line:
            terms[-2:] /= 1.0 + in_line
        return Costs(np.add.reduce(terms[1:]), TERMS, terms)

    def _share_hot(
        self,
        charged_s: Numbers,
        prompt: Prompt,
        candidates: Candidates,
        held: Held,
        now: float,
    ) -> None:
        """Leave the share of the work that is this prompt's alone."""
        if not self._weights.shares_hot:
            return
        charge = self._heat.charge(prompt, len(candidates), now)
        if not charge.is_whole:
            cached = np.minimum(held.tokens, prompt.num_tokens - 1)
            charged_s *= (charge.total - charge.before(cached)) / (prompt.num_tokens - cached)

    def _balance_unit_s(self, candidates: Candidates, now: float) -> float:
        """What is charged to one that was sent twice the mean."""
        is_telling = min(max(candidates.mean_recent(now) - FEW, 0.0) / MANY, 1.0)
        return self._weights.balance * self._turns.typical_s * is_telling

    def _surplus(
        self, surplus_s: Numbers, shares: Numbers, work_s: Numbers, mean_s: float, now: float
    ) -> None:
        """Write what is charged besides for the work, where this much makes it too much."""
        num_besides = self._begun(now) / len(work_s) - 1.0
        is_telling = min(max(num_besides, 0.0) / FEW_BEGUN, 1.0)
        if not mean_s or not is_telling:
            surplus_s.fill(0.0)
            return
        np.divide(work_s, 2.0 * mean_s, out=surplus_s)
        surplus_s += shares
        surplus_s -= 1.0
        np.maximum(surplus_s, 0.0, out=surplus_s)
        surplus_s *= self._weights.evenness * is_telling
        surplus_s *= work_s

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
