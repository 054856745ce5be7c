"""The default: the least delay, of this prompt, of those that it delays, and of those to come.

    cost = wait + price * work * charged + harm + balance + surplus                (seconds)

    wait      until the candidate has computed what it was sent, and who goes before in line
    work      to compute what it lacks of the prompt, by the candidate's own step times
    charged   the share of it that is charged to this prompt: what others will ask for there, too,
              is computed once for all of them (`heat.py`), so hot prefixes are copied on purpose
    price     1.1 + 3 * prompts in line a candidate: work that another would not have to do delays
              everybody who waits, so the longer the line, the more a cached prefix is worth; of
              equal delays, the one with less work
    harm      work * (prompts in line that would go after it + requests that decode there + half of
              those who come while it is computed)
    share     what the candidate was sent lately, and what its other conversations will bring that
              go on there, as turns of others did (`ongoing.py`): over the mean
    balance   of a conversation that begins: two typical prompts' work, times by how much more than
              the mean that is: what begins here comes back here. While all were sent few, it counts
              nothing
    surplus   6 * (work + what its conversation will bring) * by how much more than the mean it is,
              half of that included: where too much is, it is dear, so those conversations leave
              that lose little by it. While few conversations began lately, it counts little. New
              ones even it out for nothing: once none begin, only those that are there can, and what
              is beyond 10 % is charged 11 times

Balance and surplus count the less the more wait: what waits evens out by itself.

Prompts are bound late (`line.py`): they wait in the gateway's line, not in a replica's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from baton.router.cache.heat import Charge, Heat
from baton.router.fairness.turns import Turns, later_s
from baton.router.policies.cost_terms import TERMS, Asked, cost_terms
from baton.router.policies.routing_policy import Costs, Held
from baton.router.prompt import Prompt
from baton.router.replicas.candidate import Candidate
from baton.router.replicas.candidates import Candidates
from baton.router.table.columns import RECENT_HALF_LIFE_S, mean


@dataclass(frozen=True, slots=True, kw_only=True)
class CostWeights:
    """Chosen on Mooncake's conversations and six loads of our own; none of them is sharp."""

    scarcity: float = 3.0
    """Tried: 0 to 6."""
    balance: float = 2.0
    """Tried: 0 to 3."""
    evenness: float = 6.0
    """Tried: 0 to 20."""
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
SPARE, HASTE = 0.1, 10.0
"""Once no conversations begin, what a candidate has beyond so much more than the mean is charged so
many times on top. Tried: 0.03 to 0.1, and 5 to 30."""


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
        in_line = mean(candidates.num_waiting) if candidates.has_lines else 0.0
        mean_s, num_recent = candidates.mean_recent(now)
        num, ongoing = len(candidates), candidates.columns.ongoing
        ongoing.pass_to(now)
        home = self._home(prompt, candidates)
        num_others = mean(candidates.num_ongoing) - (home is not None) / num
        mean_share_s = mean_s + num_others * ongoing.future_s
        asked = Asked(
            now=now,
            num_tokens=prompt.num_tokens,
            arrived_s=prompt.arrived_s,
            latest_s=self._turns.latest_s,
            later_s=later_s(prompt.priority),
            price=BASE_PRICE + self._weights.scarcity * in_line,
            coming_per_s=ongoing.sent_per_s / num / 2.0,
            balance_s=self._balance_unit_s(num_recent) if prompt.is_first_turn else 0.0,
            evenness=self._evenness(num, now) if mean_share_s else 0.0,
            spare=SPARE,
            haste=HASTE * self._none_begin(num, now),
            left=candidates.columns.left(now),
            future_s=ongoing.future_s,
            home=-1 if home is None else home.row,
            mean_share_s=mean_share_s,
            num_waiting=in_line,
        )
        charge = self._charge(prompt, num, now)
        terms = cost_terms(asked, charge, candidates, held.tokens)
        return Costs(terms[-1], TERMS, terms[:-1])

    def _home(self, prompt: Prompt, candidates: Candidates) -> Candidate | None:
        """Where its conversation was last, if that may be chosen."""
        home = candidates.columns.ongoing.home(prompt.session)
        if not isinstance(home, Candidate) or candidates.place(home) is None:
            return None
        return home

    def _charge(self, prompt: Prompt, num_candidates: int, now: float) -> Charge | None:
        """Which share of the work is this prompt's alone; None: all of it."""
        if not self._weights.shares_hot:
            return None
        charge = self._heat.charge(prompt, num_candidates, now)
        return None if charge.is_whole else charge

    def _balance_unit_s(self, num_recent: float) -> float:
        """What is charged to one that was sent twice the mean, where one was sent so many."""
        is_telling = min(max(num_recent - FEW, 0.0) / MANY, 1.0)
        return self._weights.balance * self._turns.typical_s * is_telling

    def _evenness(self, num_candidates: int, now: float) -> float:
        """What is charged for a second of work to one that was sent twice the mean."""
        num_besides = self._begun(now) / num_candidates - 1.0
        return self._weights.evenness * min(max(num_besides, 0.0) / FEW_BEGUN, 1.0)

    def _none_begin(self, num_candidates: int, now: float) -> float:
        """Whether new conversations even nothing out any more: 1, if none has begun for as long as
        it took, lately, until as many as there are candidates had; 0, if for half as long."""
        per_s = self._num_begun * math.log(2) / RECENT_HALF_LIFE_S
        num_missing = per_s * (now - self._begun_at_s) / num_candidates
        return min(max(2.0 * num_missing - 1.0, 0.0), 1.0)

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
