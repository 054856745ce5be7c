"""The replica whose cache spares another one a part of a prompt."""

from __future__ import annotations

import numpy as np

from baton.router.placement import PlacementRequest
from baton.router.prompt import drawn, mix, mixed
from baton.router.pulling import Holding, best_source
from baton.router.view import PoolView, ReplicaView, View

MAX_ASKED = 8
"""Holders of each role that are compared: the one with most may be the one that is far away."""


def source_for(taker: ReplicaView, view: View, request: PlacementRequest) -> Holding | None:
    """The replica that has enough more of the prompt than `taker` to be asked for it."""
    least = taker.num_soon_tokens + view.rates.min_tokens
    most = max(view.decode.most_cached, view.prefill.most_cached)
    if not view.rates.is_enabled or most < least:
        return None
    holders = (*_most(view.decode, least, request), *_most(view.prefill, least, request))
    draw = drawn(request.request_id)
    in_order = sorted(holders, key=lambda one: mixed(draw, one.candidate.draw))
    return best_source(
        [Holding(one.info, one.num_cached_tokens) for one in in_order],
        num_held=taker.num_soon_tokens,
        taker=taker.info.epoch,
        rates=view.rates,
    )


def num_has(replica: ReplicaView, source: Holding | None) -> int:
    """Leading tokens of the prompt that it has, will have or can fetch."""
    return max(replica.num_soon_tokens, source.num_tokens if source else 0)


def _most(replicas: PoolView, least: int, request: PlacementRequest) -> list[ReplicaView]:
    """Those that have the most of it, and as much as it takes; of equals, who is drawn."""
    pool = replicas.pool
    cached = np.where(pool.is_connected & ~pool.is_away, replicas.cached, 0)
    if request.lost:
        cached[replicas.pool.is_one_of(request.lost)] = 0
    places = np.flatnonzero(cached >= max(least, 1))
    if len(places) > MAX_ASKED:
        draws = mix(pool.candidates.draws[places], drawn(request.request_id))
        places = places[np.lexsort((draws, -cached[places]))[:MAX_ASKED]]
    return list(replicas.at(places))
