"""What each replica has of a prompt or can fetch, and how long that takes: for the routing policy.

    holder     the replica that has most of the prompt, found once a prompt
    usable     by candidate: the tokens that it has; or those of the holder, where fetching the rest
               is clearly cheaper than computing it (`cache/pulling.py`), over the two's own link
    fetch      seconds until those are there; it is fetched while the prompt waits
    handoff    seconds after the first token until the KV is where the request is decoded

Both are by what was measured between the two replicas lately, and as between all others else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from baton.core.ids import Epoch
from baton.core.replicas import ReplicaInfo
from baton.router.cache.pulling import CLEARLY, PullRates
from baton.router.placement import PlacementRequest
from baton.router.policies.routing_policy import Held
from baton.router.prompt import drawn, mix
from baton.router.replicas.view import PoolView, View
from baton.router.speeds.link_times import LinkTime
from baton.router.table.columns import Numbers


class Holder(NamedTuple):
    info: ReplicaInfo
    num_tokens: int


def held_by(
    replicas: PoolView, view: View, request: PlacementRequest, decode: ReplicaInfo | None
) -> Held:
    """`decode`: who decodes what prefill replicas compute; None: whoever computes it."""
    tokens, rates = replicas.soon, view.rates
    handoff_s = None if decode is None else _handoffs_s(replicas, rates, request, decode)
    holder = _holder(view, request)
    if holder is None:
        return Held(tokens, handoff_s=handoff_s)
    num_more = holder.num_tokens - tokens
    num_bytes = np.maximum(num_more, 0.0) * _token_bytes(holder.info)
    fetch_s = rates.latency_s + num_bytes / rates.bytes_per_s
    by_taker = rates.links.from_lender(holder.info.epoch)
    for place, line in _places(replicas, by_taker):
        fetch_s[place] = line.seconds(float(num_bytes[place]))
    pays = num_more >= rates.min_tokens
    pays &= num_more / rates.tokens_per_s >= CLEARLY * fetch_s
    if not pays.any():
        return Held(tokens, handoff_s=handoff_s)
    usable = np.where(pays, float(holder.num_tokens), tokens)
    return Held(tokens, usable, np.where(pays, fetch_s, 0.0), handoff_s)


def _handoffs_s(
    replicas: PoolView, rates: PullRates, request: PlacementRequest, decode: ReplicaInfo
) -> Numbers | None:
    if decode.epoch in replicas.pool:
        return None  # it computes prompts for itself
    num_bytes = request.num_tokens * _token_bytes(decode)
    found = np.full(len(replicas), rates.handoff_s)
    by_lender = rates.handoffs.to_taker(decode.epoch)
    for place, line in _places(replicas, by_lender):
        found[place] = line.seconds(num_bytes)
    return found


def _places(replicas: PoolView, by_epoch: Mapping[Epoch, LinkTime]) -> list[tuple[int, LinkTime]]:
    """The places of those replicas of which a link time is known, with that time."""
    if not by_epoch:
        return []
    rows = [(replicas.pool.row(epoch), line) for epoch, line in by_epoch.items()]
    if replicas.places is None:
        return [(row, line) for row, line in rows if row is not None]
    place_by_row = {row: place for place, row in enumerate(replicas.places.tolist())}
    return [(place_by_row[row], line) for row, line in rows if row in place_by_row]


def _holder(view: View, request: PlacementRequest) -> Holder | None:
    """The replica with most of the prompt; equals are drawn. None: no replica has enough to be
    asked."""
    if not view.rates.is_enabled:
        return None
    best: Holder | None = None
    for replicas in (view.decode, view.prefill):
        least = max(view.rates.min_tokens, best.num_tokens + 1 if best else 1)
        if replicas.most_cached < least:
            continue
        pool = replicas.pool
        can_lend = pool.is_connected & ~pool.is_away
        if request.lost:
            can_lend &= ~pool.is_one_of(request.lost)
        cached = np.where(can_lend, replicas.cached, 0.0)
        most = float(cached.max())
        if most >= least:
            places = (cached == most).nonzero()[0]
            draws = mix(pool.candidates.draws.take(places), drawn(request.request_id))
            row = int(places[draws.argmin()])
            best = Holder(pool.replicas[row].info, int(most))
    return best


def _token_bytes(info: ReplicaInfo) -> float:
    return info.layout.block_bytes / info.layout.block_size
