"""Estimates how much of a prompt each replica has or can fetch, and how long that takes.

    holder     the replica that has most of the prompt, found once a prompt
    usable     by candidate: the tokens that it has; or those of the holder, if fetching the rest is
               clearly cheaper than computing it (`cache/pulling.py`), over their own link
    fetch      seconds until those are there; they are fetched while the prompt waits
    handoff    seconds after the first token until the KV is where the request is decoded

Both times are recent measurements between the two replicas, else between all others. Compiled if
the library is available (`kernels/cpu/source/routing/choices.cpp`), with the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from baton.core.ids import Epoch
from baton.core.replicas import ReplicaInfo
from baton.kernels.cpu.library import library_without_torch
from baton.kernels.routing import choices_cpu as compiled
from baton.router.cache.pulling import CLEARLY, PullRates
from baton.router.placement import PlacementRequest
from baton.router.policies.routing_policy import PrefixHits
from baton.router.prompt import drawn, mix
from baton.router.replicas.view import PoolView, View
from baton.router.speeds.link_times import LinkTime
from baton.router.table.columns import Numbers


class Holder(NamedTuple):
    info: ReplicaInfo
    num_tokens: int


def held_by(
    replicas: PoolView, view: View, request: PlacementRequest, decode: ReplicaInfo | None
) -> PrefixHits:
    """`decode`: the replica that will decode; None: the one that computes the prompt."""
    tokens, rates = replicas.soon, view.rates
    handoff_s = None if decode is None else _handoffs_s(replicas, rates, request, decode)
    holder = _holder(view, request)
    if holder is None:
        return PrefixHits(tokens, handoff_s=handoff_s)
    found = _fetches(replicas, rates, holder)
    if found is None:
        return PrefixHits(tokens, handoff_s=handoff_s)
    return PrefixHits(tokens, *found, handoff_s)


def _fetches(
    replicas: PoolView, rates: PullRates, holder: Holder
) -> tuple[Numbers, Numbers] | None:
    """The tokens that each has or fetches from the holder, where that pays, and in how many
    seconds; None: it pays for no replica."""
    tokens, token_bytes = replicas.soon, _token_bytes(holder.info)
    by_taker = rates.links.from_lender(holder.info.epoch)
    library = library_without_torch()
    if library is not None and not by_taker:
        usable, fetch_s = out = np.empty((2, len(tokens)))
        link = rates.latency_s, rates.bytes_per_s
        all_ = (holder.num_tokens, token_bytes, *link, rates.tokens_per_s, rates.min_tokens)
        return (
            (usable, fetch_s) if compiled.fetches(library, (*all_, CLEARLY), tokens, out) else None
        )
    num_more = holder.num_tokens - tokens
    num_bytes = np.maximum(num_more, 0.0) * token_bytes
    fetch_s = rates.latency_s + num_bytes / rates.bytes_per_s
    for place, line in _places(replicas, by_taker):
        fetch_s[place] = line.seconds(float(num_bytes[place]))
    pays = num_more >= rates.min_tokens
    pays &= num_more / rates.tokens_per_s >= CLEARLY * fetch_s
    if not pays.any():
        return None
    return np.where(pays, float(holder.num_tokens), tokens), np.where(pays, fetch_s, 0.0)


def _handoffs_s(
    replicas: PoolView, rates: PullRates, request: PlacementRequest, decode: ReplicaInfo
) -> Numbers | None:
    if decode.epoch in replicas.pool:
        return None  # it computes prompts for itself
    found = np.empty(len(replicas))
    found.fill(rates.handoff_s)
    if by_lender := rates.handoffs.to_taker(decode.epoch):
        num_bytes = request.num_tokens * _token_bytes(decode)
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
        row = lender_with_most(replicas, request, least)
        if row >= 0:
            best = Holder(replicas.pool.replicas[row].info, int(replicas.cached[row]))
    return best


def lender_with_most(replicas: PoolView, request: PlacementRequest, least: float) -> int:
    """The row of the pool with most of the prompt, among replicas that can lend it; -1 if none has
    `least` tokens."""
    pool, draw = replicas.pool, drawn(request.request_id)
    is_away = pool.is_away | pool.is_one_of(request.lost) if request.lost else pool.is_away
    columns = pool.candidates.columns
    found = library_without_torch()
    if found is not None:
        can_lend = pool.is_connected, is_away
        return compiled.most_of(
            found, replicas.cached, can_lend, columns.draws_address, draw, least
        )
    cached = np.where(pool.is_connected & ~is_away, replicas.cached, -math.inf)
    most = cached.max()
    if most < least:
        return -1
    rows = (cached == most).nonzero()[0]
    return int(rows[mix(columns.draws.take(rows), draw).argmin()])


def _token_bytes(info: ReplicaInfo) -> float:
    return info.layout.block_bytes / info.layout.block_size
