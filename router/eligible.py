"""Which of the replicas in a view may take a request: those that accept requests and did not fail.

    ready      prefill replicas that do not drain       in_time    of these, those not overdue
    opened     decode replicas that take one more       but_lost   no earlier attempt failed there

If the last two leave no replica, all are eligible.
"""

from __future__ import annotations

from baton.router.placement import PlacementRequest
from baton.router.replicas.pool import Pool
from baton.router.replicas.view import PoolView
from baton.router.table.columns import Mask

OVERDUE_S = 0.5
"""A replica whose oldest prompt is later than this is not waited for."""


def ready(replicas: PoolView, request: PlacementRequest) -> PoolView:
    return but_lost(but_draining(replicas), request)


def but_draining(replicas: PoolView) -> PoolView:
    pool = replicas.pool
    return replicas.where(~pool.is_draining) if pool.num_draining else replicas


def opened(replicas: PoolView, request: PlacementRequest) -> PoolView:
    pool = replicas.pool
    is_whole = pool.num_open == len(pool.replicas)
    return but_lost(replicas if is_whole else replicas.where(pool.is_open), request)


def in_time(replicas: PoolView, now: float) -> PoolView:
    if not replicas.pool.candidates.is_any_overdue(now, OVERDUE_S):
        return replicas
    return _or_all(replicas.where(~is_late(replicas.pool, now)), replicas)


def is_late(pool: Pool, now: float) -> Mask:
    return pool.candidates.overdue_s(now) > OVERDUE_S


def but_lost(replicas: PoolView, request: PlacementRequest) -> PoolView:
    if not request.lost:
        return replicas
    return _or_all(replicas.where(~replicas.pool.is_one_of(request.lost)), replicas)


def _or_all(some: PoolView, all_: PoolView) -> PoolView:
    return some if len(some) else all_
