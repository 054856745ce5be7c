"""Which replica decodes a request: the one with the least to do, counting what it lacks of the
prompt; or the one that another choice of the same request runs on, if it has room.
"""

from __future__ import annotations

from baton.router.eligible import opened
from baton.router.placement import PlacementRequest
from baton.router.prompt import drawn, mix
from baton.router.view import PoolView, ReplicaView, View

MANY_TOKENS = 1 << 22
"""More than any prompt has: what is less than one of them settles equals."""


def choose_decode(request: PlacementRequest, view: View) -> tuple[ReplicaView | None, bool]:
    """Who decodes it, if anybody has room, and whether that is beside another choice of it."""
    pool = view.decode.pool
    if request.near is not None and request.near not in request.lost:
        row = pool.row(request.near)
        if row is not None and pool.is_open[row]:
            return view.decode[row], True
    open_ = opened(view.decode, request)
    return (_least_busy(open_, request) if len(open_) else None), False


def _least_busy(replicas: PoolView, request: PlacementRequest) -> ReplicaView:
    """Of equal work, who has more of the prompt: the pool computes less. Then by draw: fair among
    all replicas over many requests, and the same each time for one of them."""
    num_busy, num_has = replicas.pool.num_busy_tokens, replicas.soon
    if replicas.places is not None:
        num_busy = num_busy[replicas.places]
    costs = num_busy - num_has
    costs *= MANY_TOKENS
    costs -= num_has
    place = int(costs.argmin())
    equals = (costs == costs[place]).nonzero()[0]
    if len(equals) > 1:
        draws = mix(replicas.candidates.draws[equals], drawn(request.request_id))
        place = int(equals[draws.argmin()])
    return replicas[place]
