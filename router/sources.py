"""The replica from whose cache another one should fetch a part of a prompt."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from baton.router.cache.pulling import Holding, best_source
from baton.router.placement import PlacementRequest
from baton.router.prompt import drawn, mix, mixed
from baton.router.replicas.pool import KnownReplica
from baton.router.replicas.view import PoolView, ReplicaView, View

MAX_ASKED = 8
"""Holders of each role that are compared: the one with most may be the one that is far away."""


def source_for(taker: ReplicaView, view: View, request: PlacementRequest) -> Holding | None:
    """The replica that has enough more of the prompt than `taker` to be asked for it."""
    least = taker.num_soon_tokens + view.rates.min_tokens
    if not view.rates.is_enabled or view.most_cached < least:
        return None
    holders = [*_most(view.decode, least, request), *_most(view.prefill, least, request)]
    if len({num_tokens for _, num_tokens in holders}) < len(holders):  # of equals, who is drawn
        draw = drawn(request.request_id)
        holders.sort(key=lambda one: mixed(draw, one[0].candidate.draw))
    return best_source(
        [Holding(replica.info, num_tokens) for replica, num_tokens in holders],
        num_held=taker.num_soon_tokens,
        taker=taker.info.epoch,
        rates=view.rates,
    )


def num_has(replica: ReplicaView, source: Holding | None) -> int:
    """Leading tokens of the prompt that it has, will have or can fetch."""
    return max(replica.num_soon_tokens, source.num_tokens if source else 0)


def _most(
    replicas: PoolView, least: int, request: PlacementRequest
) -> Iterator[tuple[KnownReplica, int]]:
    """The replicas that have the most of the prompt, `least` tokens or more; equals are drawn."""
    if replicas.most_cached < least:
        return iter(())
    pool, cached = replicas.pool, replicas.cached
    has_enough = (cached >= max(least, 1)) & pool.is_connected
    if pool.num_away:
        has_enough &= ~pool.is_away
    if request.lost:
        has_enough &= ~pool.is_one_of(request.lost)
    places = has_enough.nonzero()[0]
    if len(places) > MAX_ASKED:
        draws = mix(pool.candidates.draws.take(places), drawn(request.request_id))
        places = places[np.lexsort((draws, -cached.take(places)))[:MAX_ASKED]]
    every = map(pool.replicas.__getitem__, places.tolist())
    return zip(every, map(int, cached.take(places).tolist()), strict=True)
