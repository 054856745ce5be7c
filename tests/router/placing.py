"""Fleets and requests for tests of the placer: views made of facts, without processes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.gateway.fleet.known_replicas import known, make_replica, view_of

from baton.core.ids import RequestId
from baton.core.replicas import Role
from baton.router.cache.prompt_names import PromptNames
from baton.router.placement import Placement, PlacementRequest
from baton.router.placer import Placer, Routing
from baton.router.policies.cost import Cost
from baton.router.policies.routing_policy import RoutingPolicy
from baton.router.prompt import Prompt
from baton.router.replicas.view import ReplicaView, View

NAMES = PromptNames()
LONG = PlacementRequest(request_id=RequestId("r"), num_tokens=1000)


def decode(name: str, *, max_open: int = 4, is_ready: bool = True, **facts: Any) -> ReplicaView:
    return known(make_replica(name, max_open=max_open, is_ready=is_ready), **facts)


def prefill(name: str, *, is_ready: bool = True, **facts: Any) -> ReplicaView:
    return known(make_replica(name, role=Role.PREFILL, is_ready=is_ready), **facts)


def placer(local_prefill_tokens: int = 64, policy: RoutingPolicy | None = None) -> Placer:
    return Placer(
        Routing(policy or Cost(), local_prefill_tokens), lambda names, epoch: [0] * len(names)
    )


def place(
    request: PlacementRequest, *, decode: list[ReplicaView], prefill: list[ReplicaView]
) -> Placement | None:
    view = view_of(decode, prefill)
    placed = placer().place(request, NAMES, view, now=0.0)
    assert not isinstance(placed, Prompt), "nobody here lends credit"
    return placed


def place_at(
    request: PlacementRequest, *, decode: list[ReplicaView], prefill: list[ReplicaView]
) -> tuple[str, list[str]]:
    placement = place(request, decode=decode, prefill=prefill)
    assert placement is not None
    return placement.decode.replica_id, [peer.replica_id for peer in placement.prefill]


def lent(name: str, credit_tokens: int = 0) -> ReplicaView:
    replica = prefill(name)
    replica.candidate.credit_tokens = credit_tokens
    return replica


def asked(name: str) -> PlacementRequest:
    return replace(LONG, request_id=RequestId(name))


def send(placement: Placement | Prompt | None, view: View, now: float) -> str:
    """Book it, as a gateway does; who computes it."""
    assert isinstance(placement, Placement)
    [peer] = [r for r in view.prefill if r.info.epoch == placement.prefill[0].epoch]
    peer.candidate.book(placement.prompt, 0, now)
    return peer.info.replica_id
