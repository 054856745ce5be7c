"""Replicas as registry, router and gateway know them: facts, with no processes behind them."""

from __future__ import annotations

from baton.core.ids import Epoch, ReplicaId
from baton.core.kv_layout import KvLayout
from baton.core.messages import ReplicaInfo, Role

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
