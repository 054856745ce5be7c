"""Which replica decodes a request: the one with the least to do, counting what it lacks of the
prompt; or the one that another choice of the same request runs on, if it has room.
"""

from __future__ import annotations

from baton.router.placement import PlacementRequest
from baton.router.prompt import drawn, mixed
from baton.router.view import ReplicaView, View

RUNNING_REQUEST_COST = 8
"""Tokens' worth of a request that decodes on a replica: it slows every step a little."""


def choose_decode(request: PlacementRequest, view: View) -> tuple[ReplicaView | None, bool]:
    """Who decodes it, if anybody has room, and whether that is beside another choice of it."""
    open_ = [replica for replica in view.decode if replica.is_open]
    for replica in open_:
        if replica.info.epoch == request.near and replica.info.epoch not in request.lost:
            return replica, True
    draw = drawn(request.request_id)
    ranked = sorted(open_, key=lambda one: (_cost(one, request), mixed(draw, one.candidate.draw)))
    return (ranked[0] if ranked else None), False


def _cost(replica: ReplicaView, request: PlacementRequest) -> tuple[bool, int, int]:
    """The smallest wins; of equal work, who has more of the prompt: the pool computes less."""
    num_has = replica.num_soon_tokens
    busy = replica.num_queued_tokens + RUNNING_REQUEST_COST * replica.num_open
    return replica.info.epoch in request.lost, busy + request.num_tokens - num_has, -num_has
