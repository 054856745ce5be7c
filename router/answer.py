"""A choice, told: the placement that it makes, why, and what was known of the other replicas."""

from __future__ import annotations

from collections.abc import Sequence

from baton.core.messages import Role
from baton.router.candidate import Candidate
from baton.router.decisions import Considered
from baton.router.decode_choice import choose_decode
from baton.router.eligible import opened, ready
from baton.router.placement import Placement, PlacementRequest
from baton.router.prompt import Prompt, mixed
from baton.router.pulling import Holding
from baton.router.routing_policy import Held, RoutingPolicy
from baton.router.sources import num_has, source_for
from baton.router.view import ReplicaView, View

MAX_PREFILL_CANDIDATES = 2

MAX_TOLD = 8
"""Candidates that a decision tells of: the cheapest."""


class Answers:
    def __init__(self, policy: RoutingPolicy) -> None:
        self._policy = policy

    def here(
        self,
        request: PlacementRequest,
        prompt: Prompt,
        decode: ReplicaView,
        view: View,
        why: str,
        *,
        is_beside: bool,
    ) -> Placement:
        now = prompt.arrived_s
        source = source_for(decode, view, request)
        num_held = num_has(decode, source)
        peers = ready(view.prefill, request)
        others = peers or opened(view.decode, request)
        others = [one for one in others if one is not decode]
        if peers:  # they are not what was chosen from: the soonest of them will do
            others = sorted(others, key=lambda one: one.candidate.busy_s(now))[: MAX_TOLD - 1]
        considered = self.considered(request, prompt, [decode, *others], view, now)
        self._policy.placed(prompt, decode.candidate)
        return Placement(
            decode=decode.info,
            prompt=prompt,
            num_prefill_tokens=max(request.num_tokens - num_held, 1),
            source=None if source is None else source.info.endpoint,
            reason=_told(why, source, is_beside=is_beside),
            considered=considered,
            num_candidates=1 + len(others),
            foreseen_s=considered[0].first_token_s,
        )

    def apart(
        self,
        request: PlacementRequest,
        prompt: Prompt,
        chosen: Candidate,
        view: View,
        now: float,
        costs: Sequence[float] | None = None,
    ) -> Placement:
        """`chosen` computes the prompt, for the decode replica that is best at this moment."""
        decode, is_beside = choose_decode(request, view)
        assert decode is not None, "the caller has seen that one is open"
        peers = ready(view.prefill, request)
        held = Held([replica.num_soon_tokens for replica in peers])
        candidates = [replica.candidate for replica in peers]
        if costs is None:
            costs = self._policy.costs(prompt, candidates, held, now)
        ranked = sorted(
            range(len(peers)),
            key=lambda place: (
                candidates[place] is not chosen,
                costs[place],
                mixed(prompt.draw, candidates[place].draw),
            ),
        )
        best = peers[ranked[0]]
        in_order = [peers[place] for place in ranked]
        considered = self.considered(
            request, prompt, in_order, view, now, [costs[place] for place in ranked]
        )
        source = source_for(best, view, request)
        num_held = num_has(best, source)
        num_equals = sum(cost == costs[ranked[0]] for cost in costs)
        why = (
            f"{best.info.replica_id} has least cost of {len(peers)}: "
            f"{best.candidate.busy_s(now):.3f} s until it is free, "
            f"{best.num_soon_tokens} tokens cached"
        )
        if num_equals > 1:
            why += f"; drawn by the request's id from {num_equals} equal prefill replicas"
        return Placement(
            decode=decode.info,
            prompt=prompt,
            prefill=tuple(peers[place].info.endpoint for place in ranked[:MAX_PREFILL_CANDIDATES]),
            num_prefill_tokens=max(request.num_tokens - num_held, 1),
            source=None if source is None else source.info.endpoint,
            reason=_told(why, source, is_beside=is_beside),
            considered=considered,
            num_candidates=len(peers),
            foreseen_s=considered[0].first_token_s,
        )

    def considered(
        self,
        request: PlacementRequest,
        prompt: Prompt,
        replicas: Sequence[ReplicaView],
        view: View,
        now: float,
        costs: Sequence[float] | None = None,
    ) -> tuple[Considered, ...]:
        """The first of them, and the cheapest of the others."""
        held = Held([replica.num_soon_tokens for replica in replicas])
        candidates = [replica.candidate for replica in replicas]
        if costs is None:
            costs = self._policy.costs(prompt, candidates, held, now)
        first, *others = range(len(replicas))
        others.sort(key=costs.__getitem__)
        places = (first, *others[: MAX_TOLD - 1])
        terms = self._policy.explain(prompt, candidates, held, now, places)
        found: list[Considered] = []
        for place, parts in zip(places, terms, strict=True):
            replica = replicas[place]
            source = source_for(replica, view, request) if place == first else None
            num_held = num_has(replica, source)
            work_s = replica.candidate.speed.prefill_s(prompt.num_tokens, num_held)
            found.append(
                Considered(
                    replica_id=replica.info.replica_id,
                    epoch=replica.info.epoch,
                    cost=costs[place],
                    num_held_tokens=num_held,
                    wait_s=self._wait_s(prompt, replica, work_s, now),
                    work_s=work_s,
                    latency_s=view.rates.latency_s if replica.info.role is Role.PREFILL else 0.0,
                    corrected_s=replica.candidate.corrected_s,
                    age_s=replica.capacity_age_s,
                    terms=parts,
                )
            )
        return tuple(found)

    def _wait_s(self, prompt: Prompt, replica: ReplicaView, work_s: float, now: float) -> float:
        """For what it has to do, and for those in line who go before."""
        candidate, turns = replica.candidate, self._policy.turns
        wait_s = candidate.busy_s(now)
        if turns is not None and candidate.waiting:
            wait_s += candidate.ahead_s(turns.due_s(prompt, work_s, candidate.line_s))
        return wait_s


def _told(why: str, source: Holding | None, *, is_beside: bool) -> str:
    if source is not None:
        why = f"{why}; {source.num_tokens} tokens cached on {source.info.replica_id}"
    return f"beside another choice of this request; {why}" if is_beside else why
