"""Which replica decodes a request: the one with the least to do, counting what it lacks of the
prompt; or the one that another choice of the same request runs on, if it has room.
"""

from __future__ import annotations

from baton.kernels.cpu.library import library_without_torch
from baton.kernels.routing import choices_cpu as compiled
from baton.router.eligible import opened
from baton.router.placement import PlacementRequest
from baton.router.prompt import drawn, mix
from baton.router.replicas.view import PoolView, ReplicaView, View
from baton.router.table.columns import Numbers

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
    pool, draw, found = replicas.pool, drawn(request.request_id), library_without_torch()
    if found is None:
        return replicas[_least_busy_of(replicas, draw)]
    facts = pool.num_busy_tokens, replicas.cached, replicas.expected, pool.candidates.draws
    return replicas[compiled.least_busy(found, facts, replicas.places, MANY_TOKENS, draw)]


def _least_busy_of(replicas: PoolView, draw: int) -> int:
    """The definition."""
    num_busy, num_has = replicas.pool.num_busy_tokens, replicas.soon
    if replicas.places is not None:
        num_busy = num_busy[replicas.places]
    costs: Numbers = (num_busy - num_has) * MANY_TOKENS - num_has
    equals = (costs == costs.min()).nonzero()[0]
    return int(equals[mix(replicas.candidates.draws[equals], draw).argmin()])
