"""Replicas as registry, router and gateway know them: facts, with no processes behind them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from baton.core.ids import Epoch, ReplicaId
from baton.core.kv_layout import KvLayout
from baton.core.messages import Capacity, ReplicaInfo, Role
from baton.router.candidate import Candidate
from baton.router.speed import ConstantRate
from baton.router.view import ReplicaView

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


def known(info: ReplicaInfo, *, num_queued_tokens: int = 0, **facts: Any) -> ReplicaView:
    """A replica that computes 1000 tokens a second, with so many to compute."""
    candidate = Candidate(
        info.replica_id, ConstantRate(tokens_per_s=1000.0), epoch=info.epoch, credit_tokens=None
    )
    candidate.hear(num_queued_tokens, facts.get("num_open", 0), now=0.0)
    if num_queued_tokens:
        capacity = facts.get("capacity") or Capacity(max_open=info.max_open)
        facts["capacity"] = replace(capacity, num_queued_tokens=num_queued_tokens)
    return ReplicaView(info=info, candidate=candidate, **facts)
