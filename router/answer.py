"""Turns a choice into a placement, with its reason and what was known of the other replicas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from baton.core.replicas import ReplicaInfo, Role
from baton.core.wording import count_of
from baton.router.cache.pulling import Holding
from baton.router.eligible import opened, ready
from baton.router.explain.decisions import Considered, DecodeConsidered
from baton.router.explain.ranking import MAX_REPORTED, Ranking
from baton.router.fetching import held_by
from baton.router.placement import Placement, PlacementRequest
from baton.router.policies.routing_policy import Costs, PrefixHits, RoutingPolicy, least
from baton.router.prompt import Prompt
from baton.router.replicas.candidates import Candidates
from baton.router.replicas.view import PoolView, ReplicaView, View
from baton.router.sources import num_has, source_for
from baton.router.table.columns import Numbers

MAX_PREFILL_CANDIDATES = 2


class Options(NamedTuple):
    """The replicas that one of is chosen from, at least one, and what each would cost."""

    replicas: PoolView
    candidates: Candidates
    held: PrefixHits
    costs: Costs
    order: Sequence[int]
    """Indices of the cheapest candidates, as many as are reported."""

    @classmethod
    def of(
        cls,
        replicas: PoolView,
        prompt: Prompt,
        held: PrefixHits,
        policy: RoutingPolicy,
        now: float,
    ) -> Options:
        candidates = replicas.candidates
        costs = policy.costs(prompt, candidates, held, now)
        return cls(
            replicas, candidates, held, costs, least(prompt, candidates, costs, MAX_REPORTED)
        )

    @property
    def cheapest(self) -> int:
        return self.order[0]

    def ranked(self, first: int) -> list[int]:
        """Indices: the chosen candidate, then the cheapest, as many as are reported."""
        order = list(self.order)
        if order[0] == first:
            return order
        others = [place for place in order if place != first]
        return [first, *others[: MAX_REPORTED - 1]]


class _Estimates(NamedTuple):
    """Estimates for some candidates, one number each; the first candidate's may be corrected."""

    costs: Numbers
    terms: Numbers | None
    """[name, candidate]"""
    num_held: Numbers
    """Leading tokens that each need not compute."""
    wait_s: Numbers
    work_s: Numbers
    fetch_s: Numbers
    """Seconds to fetch those of them that it lacks."""


class Question(NamedTuple):
    """One request, and what is known when it is placed."""

    request: PlacementRequest
    prompt: Prompt
    decode: ReplicaView
    """The replica that decodes the request."""
    is_beside: bool
    """Another choice of it."""
    view: View
    now: float
    decode_considered: Sequence[DecodeConsidered] = ()
    """Replicas that might have decoded it."""

    def options(self, replicas: PoolView, policy: RoutingPolicy) -> Options:
        """The candidates among `replicas` to compute the prompt, with what each costs."""
        held = held_by(replicas, self.view, self.request, self.decode.info)
        return Options.of(replicas, self.prompt, held, policy, self.now)


class Answers:
    def __init__(self, policy: RoutingPolicy) -> None:
        self._policy = policy

    def here(self, asked: Question, why: str, chosen_of: Options | None = None) -> Placement:
        """The decode replica computes the prompt; `chosen_of`: it was the cheapest of these."""
        request, decode, view = asked.request, asked.decode, asked.view
        source = source_for(decode, view, request)
        considered: Sequence[Considered]
        ranked: Sequence[int]
        if chosen_of is not None:
            ranked = chosen_of.ranked(chosen_of.replicas.place(decode))
            considered = self._considered(asked, chosen_of, ranked, source)
            num_candidates = len(chosen_of.replicas)
        else:
            others = self._others(asked)
            considered = (self.alone(asked, decode, source),)
            if len(others):
                options = asked.options(others, self._policy)
                ranked = options.order[: MAX_REPORTED - 1]
                considered += tuple(self._considered(asked, options, ranked))
            num_candidates = 1 + len(others)
        self._policy.placed(asked.prompt, decode.candidate)
        return Placement(
            decode=decode.info,
            prompt=asked.prompt,
            num_prefill_tokens=max(request.num_tokens - num_has(decode, source), 1),
            source=None if source is None else source.info.endpoint,
            reason=_reason(why, source, is_beside=asked.is_beside),
            considered=considered,
            num_candidates=num_candidates,
            decode_considered=asked.decode_considered,
            foreseen_s=considered[0].first_token_s,
        )

    def apart(
        self,
        asked: Question,
        options: Options,
        first: int,
        bound_late: str = "",
        foreseen_s: float | None = None,
    ) -> Placement:
        """The one at `first` computes the prompt, for the decode replica. `bound_late`: why it is
        that one, though another may cost less by now; empty: it was chosen at once. `foreseen_s`:
        to its first token, as predicted when it came into line; None: it comes now."""
        request, decode = asked.request, asked.decode
        ranked = options.ranked(first)
        best, costs = options.replicas[first], options.costs.total
        source = source_for(best, asked.view, request)
        considered = self._considered(asked, options, ranked, source)
        cost, next_cost = costs.item(first), costs.item(ranked[min(1, len(ranked) - 1)])
        is_least = not next_cost < cost
        why = f"{best.info.replica_id} has least cost of {len(costs)}" if is_least else bound_late
        why += (
            f": {best.candidate.busy_s(asked.now):.3f} s until it is free, "
            f"{count_of(best.num_cached_tokens, 'token')} cached"
        )
        if num_expected := best.num_soon_tokens - best.num_cached_tokens:
            why += f", {num_expected} more expected"
        is_alone = bound_late or len(ranked) == 1 or next_cost > cost
        num_equals = 1 if is_alone else np.count_nonzero(costs == cost)
        if num_equals > 1:
            why += f"; drawn by the request's id from {num_equals} equal prefill replicas"
        return Placement(
            decode=decode.info,
            prompt=asked.prompt,
            prefill=tuple(
                [one.endpoint for one in options.replicas.known(ranked[:MAX_PREFILL_CANDIDATES])]
            ),
            num_prefill_tokens=max(request.num_tokens - num_has(best, source), 1),
            source=None if source is None else source.info.endpoint,
            reason=_reason(why, source, is_beside=asked.is_beside),
            considered=considered,
            num_candidates=len(costs),
            decode_considered=asked.decode_considered,
            in_line_s=0.0 if foreseen_s is None else asked.now - asked.prompt.arrived_s,
            foreseen_s=considered.first_token_s if foreseen_s is None else foreseen_s,
        )

    def alone(self, asked: Question, replica: ReplicaView, source: Holding | None) -> Considered:
        """The estimate for the replica that computes the prompt, without alternatives."""
        pool = asked.view.prefill if replica.info.role is Role.PREFILL else asked.view.decode
        one = pool.at(np.array([replica.place]))
        options = asked.options(one, self._policy)
        return self._considered(asked, options, [0], source)[0]

    def _others(self, asked: Question) -> PoolView:
        """Replicas that might have computed the prompt instead of its decode replica: the soonest
        of the prefill replicas, from which nothing was chosen; or other decode replicas."""
        peers = ready(asked.view.prefill, asked.request)
        if len(peers):
            soonest = peers.candidates.busy_s(asked.now).argsort(kind="stable")[: MAX_REPORTED - 1]
            return peers.at(soonest if peers.places is None else peers.places[soonest])
        others = opened(asked.view.decode, asked.request)
        is_other = np.ones(len(others.pool), bool)
        is_other[asked.decode.place] = False
        return others.where(is_other)

    def _considered(
        self,
        asked: Question,
        options: Options,
        ranked: Sequence[int],
        source: Holding | None = None,
    ) -> Ranking:
        """The ranking of the candidates at these places; the first has `source` to fetch from."""
        found = self._estimates(asked, options, ranked)
        num_held, wait_s, work_s, fetch_s = (
            found.num_held,
            found.wait_s,
            found.work_s,
            found.fetch_s,
        )
        every = options.replicas.known(ranked)
        # For the first candidate it is known from whom it fetches: the nearest of those with much
        # of the prompt.
        first, num_first = every[0], int(options.held.tokens[ranked[0]])
        fetch_s[0] = 0.0 if source is None else _fetch_s(asked, source, first.info, num_first)
        num_held[0] = num_first if source is None else max(num_first, source.num_tokens)
        work_s[0] = first.candidate.speed.prefill_s(asked.prompt.num_tokens, int(num_held[0]))
        if source is not None or options.held.fetch_s is not None:
            fetch_s = np.maximum(fetch_s - wait_s, 0.0)  # it is fetched while it waits
        return Ranking(
            known=[(one.info, one.candidate.corrected_s, one.received_at_s) for one in every],
            decided_s=asked.now,
            costs=found.costs,
            num_held=num_held,
            wait_s=wait_s,
            work_s=work_s,
            latency_s=asked.view.rates.latency_s,
            fetch_s=fetch_s,
            names=options.costs.names,
            terms=found.terms,
        )

    def _estimates(self, asked: Question, options: Options, ranked: Sequence[int]) -> _Estimates:
        """Estimates for the candidates at these indices."""
        costs, held, found = options.costs, options.held, options.costs.least
        terms: Numbers | None
        if found is not None and len(ranked) == len(found.order) and ranked[0] == found.order[0]:
            rows, num_terms = found.reported, len(costs.names)
            total, terms = rows[num_terms], rows[:num_terms]
            wait_s, work_s = self._delays_s(asked, options, ranked, terms)
            return _Estimates(total, terms, rows[-2].copy(), wait_s, work_s, rows[-1].copy())
        places = np.array(ranked)
        terms = None if costs.terms is None else costs.terms.take(places, axis=1)
        wait_s, work_s = self._delays_s(asked, options, ranked, terms)
        fetch_s = np.zeros(len(ranked)) if held.fetch_s is None else held.fetch_s.take(places)
        usable = held.usable.take(places)
        return _Estimates(costs.total.take(places), terms, usable, wait_s, work_s, fetch_s)

    def _delays_s(
        self, asked: Question, options: Options, ranked: Sequence[int], terms: Numbers | None
    ) -> tuple[Numbers, Numbers]:
        """How long each waits before, for what the replica has to do and for those in line who go
        before it, and what it has to compute of the prompt: as the cost's `terms` have it, if they
        do."""
        candidates, turns, names = options.candidates, self._policy.turns, options.costs.names
        if terms is not None and "work_s" in names and "wait_s" in names:
            return terms[names.index("wait_s")], terms[names.index("work_s")].copy()
        work_s = candidates.prefill_s(asked.prompt.num_tokens, options.held.usable)
        wait_s = candidates.busy_s(asked.now)
        if turns is not None and candidates.has_lines:
            due_s = turns.dues_s(asked.prompt, work_s, candidates.line_s, asked.now)
            wait_s = wait_s + candidates.ahead(due_s)[0]
        return wait_s.take(ranked), work_s.take(ranked)


def _fetch_s(asked: Question, source: Holding, taker: ReplicaInfo, num_held: int) -> float:
    pair = source.info.epoch, taker.epoch
    return asked.view.rates.fetch_s(source.num_tokens - num_held, source.info.layout, pair)


def _reason(why: str, source: Holding | None, *, is_beside: bool) -> str:
    if source is not None:
        why = f"{why}; {count_of(source.num_tokens, 'token')} cached on {source.info.replica_id}"
    return f"beside another choice of this request; {why}" if is_beside else why
