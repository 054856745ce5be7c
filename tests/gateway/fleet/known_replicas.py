"""Replicas as registry, router and gateway know them: facts, with no processes behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from baton.core.ids import Epoch, ReplicaId
from baton.core.kv_layout import KvLayout
from baton.core.replicas import Capacity, ReplicaInfo, Role
from baton.router.cache.pulling import PullRates
from baton.router.replicas.candidate import Candidate
from baton.router.replicas.pool import KnownReplica, Pool
from baton.router.replicas.view import PoolView, ReplicaView, View
from baton.router.speeds.speed import ConstantRate

NO_PULLS = PullRates(is_enabled=False)

LAYOUT = KvLayout(
    model_fingerprint=b"model",
    dtype="float32",
    num_layers=2,
    num_kv_heads=1,
    head_dim=8,
    block_size=4,
)


def make_replica(
    name: str, *, role: Role = Role.DECODE, max_open: int = 4, is_ready: bool = True
) -> ReplicaInfo:
    return ReplicaInfo(
        replica_id=ReplicaId(name),
        epoch=Epoch(f"epoch of {name}"),
        role=role,
        address="127.0.0.1:1",
        layout=LAYOUT,
        num_blocks=16,
        max_model_len=64,
        max_open=max_open,
        max_queued_tokens=1024,
        max_chunk=64,
        is_ready=is_ready,
    )


def known(
    info: ReplicaInfo,
    *,
    num_queued_tokens: int = 0,
    num_open: int = 0,
    is_connected: bool = True,
    capacity: Capacity | None = None,
    **held: int,
) -> ReplicaView:
    """A replica that computes 1000 tokens a second, with so many to compute."""
    candidate = Candidate(
        info.replica_id, ConstantRate(tokens_per_s=1000.0), epoch=info.epoch, credit_tokens=None
    )
    candidate.observe(num_queued_tokens, num_open, now=0.0)
    if num_queued_tokens:
        capacity = capacity or Capacity(max_open=info.max_open)
        capacity = replace(capacity, num_queued_tokens=num_queued_tokens)
    replica = KnownReplica(info, candidate)
    replica.num_open, replica.is_connected, replica.capacity = num_open, is_connected, capacity
    return ReplicaView(replica, 0, **held)


def view_of(
    decode: Sequence[ReplicaView] = (),
    prefill: Sequence[ReplicaView] = (),
    rates: PullRates = NO_PULLS,
) -> View:
    """Of these replicas, as one request sees them."""
    return View(decode=_pool_view(decode), prefill=_pool_view(prefill), rates=rates)


def _pool_view(views: Sequence[ReplicaView]) -> PoolView:
    pool = Pool()
    for view in views:
        pool.join(view.replica)
    cached = np.array([view.num_cached_tokens for view in views], float)
    expected = np.array([view.num_expected_tokens for view in views], float)
    return PoolView(pool, cached, expected)
