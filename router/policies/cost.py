"""The default policy: the least delay for this prompt, for those it delays, and for those to come.

    cost = wait + transfer + price * work * charged + harm + balance + surplus + late   (seconds)

    wait      until the candidate has computed what it was sent, and what goes first in line
    transfer  to fetch what another replica has of the prompt, where that is clearly cheaper than
              computing it: all of it, even if it could travel while the prompt waits, because
              others wait for the link; and from its first token until its KV is where it is
              decoded: by the links between these replicas (`fetching.py`)
    work      to compute what it neither has nor fetches, by the candidate's own step times
    charged   the share of it that is charged to this prompt: a prefix that others will ask for
              there, too, is computed once for all of them (`heat.py`), so hot prefixes are copied
              on purpose
    price     1.1 + 3 * prompts in line a candidate: work that another would not have to do delays
              all waiting prompts, so the longer the line, the more a cached prefix is worth; of
              equal delays, the one with less work
    harm      work * (prompts in line that would go after it + requests that decode there + half of
              those that arrive while it is computed and have to wait: all, where most are turns of
              conversations, which return to where those are; where few are, the fraction of the
              time that candidates are busy: the rest go elsewhere)
    share     what the candidate was sent lately, and what its conversations that go on will bring,
              as turns of others did (`ongoing.py`; three typical prompts' work, while few are
              known): over the mean
    balance   for a conversation that begins: two typical prompts' work, times by how much the share
              exceeds the mean: what begins here comes back here, and is dear to move later. It
              counts less until each candidate has been sent eight prompts
    surplus   6 * (work + what its conversation will bring) * by how much the share exceeds the
              mean, half of that included: where a candidate has too much, those conversations
              leave that lose little by it. While few conversations began lately, it counts little.
              New ones even things out for nothing: once none begin, only the existing ones can, and
              what is beyond 10 % is charged 11 times. It is then at most twice what all but a
              hundredth of prompts take, because leaving costs a conversation all its tokens once,
              and what is left is soon over. One prompt of a thousand may pay more
    late      for a prompt with an objective: the predicted overrun of its first token, and from a
              quarter of the allowed time on all of that time (`slo.py`)

Balance and surplus count the less the more prompts wait: waiting prompts even out by themselves.

Prompts are bound late (`prefill_queue.py`): they wait in the gateway's line, not in a replica's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from baton.router.cache.heat import Charge, Heat
from baton.router.fairness.turns import Turns, later_s
from baton.router.policies.cost_terms import Asked, costs
from baton.router.policies.routing_policy import Costs, PrefixHits
from baton.router.prompt import Prompt
from baton.router.replicas.candidate import Candidate
from baton.router.replicas.candidates import Candidates
from baton.router.table.columns import RECENT_HALF_LIFE_S
from baton.router.table.ongoing import Ongoing


@dataclass(frozen=True, slots=True, kw_only=True)
class CostWeights:
    """Fitted by `baton simulate` on Mooncake's conversations and the first six loads of
    `bench/router/traces.py`; none of them is sharp."""

    scarcity: float = 3.0
    """Tried: 0 to 6."""
    balance: float = 2.0
    """Tried: 0 to 3."""
    evenness: float = 6.0
    """Tried: 0 to 20."""
    shares_hot: bool = True
    """Whether what many prompts have in common is charged to all of them."""
    is_late: bool = True
    knows_objectives: bool = True


DEFAULTS = CostWeights()
BASE_PRICE = 1.1
MANY = 8.0
"""Prompts per candidate: with fewer, the replica that has most of a prompt counts less. Tried on
loads together, crowd, waves, systems and long: 0 to 40."""
SUPPOSED = 3.0
"""Typical prompts' work that a conversation brings while few are known: it is what spreads those
that begin before any has come back. Tried on the same: 0 to 3."""
MOST = 2.0
"""Times what all but a hundredth of prompts take: more is paid by no conversation for evenness once
none begin. Tried on the same, chat, agent and uneven: 0.5 to 16, and without, where the p99 of
together was half as long again."""
PATIENCE = 8.0
"""Tried on waves, long, together and crowd: 1, where the first two were less even for nothing."""
MAY_LEAVE = 0.001
"""The fraction of all prompts that may pay more than that, which does not show in the p99. Tried on
together, crowd and uneven: 0 (whose busiest replica has 1.38 times the mean on uneven, and 1.15
with it) to 0.003 (14 % of together's p99)."""
WEIGHT = 0.02
"""Weight of the last beginning in the mean time between beginnings of conversations."""
FEW_BEGUN = 4.0
"""Conversations a candidate, besides one: fewer can not be spread evenly, and had better stay where
they are."""
FEW_TURNS, MANY_TURNS = 0.5, 0.75
"""The fractions of prompts that are later turns up to which those who come can go elsewhere, and
from which on they go where their conversations are. Tried: 0 and 0.5, 0 and 1, 0.5 and 2/3
(docs/policies.md)."""
SPARE, HASTE = 0.1, 10.0
"""Once no conversations begin, a candidate's load beyond `SPARE` above the mean is charged `HASTE`
times in addition. Tried: 0.03 to 0.1, and 5 to 30."""


class Cost:
    """Costs in seconds."""

    def __init__(self, weights: CostWeights = DEFAULTS) -> None:
        self._weights = weights
        self._turns = Turns(knows_objectives=weights.knows_objectives)
        self._heat = Heat()
        self._num_begun = self._begun_at_s = 0.0
        self._between_s = 0.0
        """Mean seconds from one beginning to the next, of late."""
        self._num_may_leave = 0.0

    @property
    def turns(self) -> Turns | None:
        return self._turns if self._weights.is_late else None

    def costs(self, prompt: Prompt, candidates: Candidates, held: PrefixHits, now: float) -> Costs:
        num, ongoing = len(candidates), candidates.columns.ongoing
        ongoing.pass_to(now)  # before anything is read that it changes
        in_line = candidates.mean_num_waiting if candidates.has_lines else 0.0
        mean_s, num_recent = candidates.mean_recent(now)
        home = self._home(prompt, candidates)
        num_others = candidates.mean_num_ongoing - (home is not None) / num
        future_s = ongoing.future_s(SUPPOSED * self._turns.typical_s)
        mean_share_s = mean_s + num_others * future_s
        asked = Asked(
            now=now,
            num_tokens=prompt.num_tokens,
            arrived_s=prompt.arrived_s,
            latest_s=self._turns.latest_s,
            later_s=later_s(prompt.priority),
            due_by_s=self._turns.due_by_s(prompt),
            price=BASE_PRICE + self._weights.scarcity * in_line,
            coming_per_s=_coming_per_s(ongoing, mean_s, num) / 2.0,
            balance_s=self._balance_unit_s(num_recent) if prompt.is_first_turn else 0.0,
            evenness=self._evenness(num, now) if mean_share_s else 0.0,
            spare=SPARE,
            haste=HASTE * self._none_begin(num, now),
            most_s=self._most_s(num, ongoing.long_s, now),
            left=candidates.columns.left(now),
            future_s=future_s,
            home=-1 if home is None else home.row,
            mean_share_s=mean_share_s,
            num_waiting=in_line,
        )
        return costs(asked, self._charge(prompt, num, now), candidates, held, prompt.draw)

    def _home(self, prompt: Prompt, candidates: Candidates) -> Candidate | None:
        """The replica of the conversation's last prompt, if it may be chosen."""
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
        """The charge of a candidate with twice the mean load, where one was sent `num_recent`
        prompts."""
        is_telling = min(num_recent / MANY, 1.0)
        return self._weights.balance * self._turns.typical_s * is_telling

    def _evenness(self, num_candidates: int, now: float) -> float:
        """The charge per second of work of a candidate with twice the mean load."""
        num_besides = self._begun(now) / num_candidates - 1.0
        return self._weights.evenness * min(max(num_besides, 0.0) / FEW_BEGUN, 1.0)

    def _none_begin(self, num_candidates: int, now: float) -> float:
        """Whether new conversations even nothing out any more: 1, if none has begun for as long as
        it took, lately, until as many as there are candidates had; 0, if for half as long."""
        per_s = self._num_begun * math.log(2) / RECENT_HALF_LIFE_S
        num_missing = per_s * (now - self._begun_at_s) / num_candidates
        return min(max(2.0 * num_missing - 1.0, 0.0), 1.0)

    def _most_s(self, num_candidates: int, long_s: float, now: float) -> float:
        """The most that evenness may cost one conversation: unlimited while others begin, and for a
        few. None begin if none has for eight times as long as it took recently until as many had as
        there are candidates."""
        each_s = num_candidates * self._between_s
        num_missing = (now - self._begun_at_s) / each_s if each_s else 0.0
        none_begin = min(max(num_missing / PATIENCE - 1.0, 0.0), 1.0)
        if self._num_may_leave >= 1.0:
            return math.inf
        return MOST * long_s / none_begin if none_begin else math.inf

    def placed(self, prompt: Prompt, candidate: Candidate) -> None:
        """Learn what is typical, and what conversations begin with."""
        whole_s = candidate.speed.prefill_s(prompt.num_tokens, 0)
        self._turns.observe(whole_s)
        self._count_leaving(prompt, candidate, whole_s)
        if prompt.is_first_turn:
            self._num_begun = self._begun(prompt.arrived_s) + 1.0
            if self._num_begun > 1.0:
                between_s = max(prompt.arrived_s - self._begun_at_s, 0.0)
                weight = max(WEIGHT, 1.0 / self._num_begun)
                self._between_s += (between_s - self._between_s) * weight
            self._begun_at_s = max(prompt.arrived_s, self._begun_at_s)
            self._heat.observe(prompt, prompt.arrived_s)

    def _count_leaving(self, prompt: Prompt, candidate: Candidate, whole_s: float) -> None:
        """Update how many conversations may leave at a price beyond the bound: MAY_LEAVE a
        prompt."""
        ongoing = candidate.columns.ongoing
        home = ongoing.home(prompt.session)
        has_left = home is not None and home is not candidate and whole_s > MOST * ongoing.long_s
        self._num_may_leave = max(self._num_may_leave + MAY_LEAVE - has_left, 0.0)

    def _begun(self, now: float) -> float:
        """Conversations that began lately: older ones count less and less."""
        return self._num_begun * math.exp2((self._begun_at_s - now) / RECENT_HALF_LIFE_S)


def _coming_per_s(ongoing: Ongoing, recent_s: float, num_candidates: int) -> float:
    """Prompts that come to a candidate and would have to wait there, a second. `recent_s`: what one
    was sent lately, so that it was busy for that fraction of the time."""
    is_busy = min(recent_s * math.log(2) / RECENT_HALF_LIFE_S, 1.0)
    is_bound = min(max((ongoing.turn_share - FEW_TURNS) / (MANY_TURNS - FEW_TURNS), 0.0), 1.0)
    return ongoing.sent_per_s * (is_bound + (1.0 - is_bound) * is_busy) / num_candidates
