"""What operators read about the replicas: leaks, status and metrics, made of their own books."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from baton.core.ids import Epoch
from baton.core.messages import ReplicaInfo
from baton.proto import replica_pb2 as pb

Inspections = Mapping[Epoch, pb.InspectReply | Exception]
TERMS = ("quarantined", "leased", "live", "cached", "free")


def leaks_report(replicas: Sequence[ReplicaInfo], inspections: Inspections) -> dict[str, Any]:
    """The equation `num_blocks = quarantined + leased + live + cached + free`, by replica."""
    rows: list[dict[str, Any]] = []
    violations: list[str] = []
    unreachable: list[str] = []
    for info in replicas:
        reply = inspections.get(info.epoch)
        if not isinstance(reply, pb.InspectReply):
            unreachable.append(info.replica_id)
            continue
        terms = {term: getattr(reply.audit, term) for term in TERMS}
        found = [f"{info.replica_id}: {text}" for text in reply.audit.violations]
        violations += found
        rows.append(
            {
                "replica": info.replica_id,
                "role": info.role.value,
                "epoch": info.epoch,
                "num_blocks": reply.audit.num_blocks,
                **terms,
                "violations": found,
            }
        )
    return {
        "equation": f"num_blocks = {' + '.join(TERMS)}",
        "replicas": rows,
        "violations": violations,
        "unreachable": unreachable,
    }


def status_report(replicas: Sequence[ReplicaInfo], inspections: Inspections) -> dict[str, Any]:
    """The pools, their replicas, and how busy each is."""
    pools: dict[str, list[dict[str, Any]]] = {"prefill": [], "decode": []}
    for info in replicas:
        reply = inspections.get(info.epoch)
        row: dict[str, Any] = {
            "replica": info.replica_id,
            "epoch": info.epoch,
            "address": info.address,
            "is_ready": info.is_ready,
            "is_reachable": isinstance(reply, pb.InspectReply),
            "max_model_len": info.max_model_len,
            "num_blocks": info.num_blocks,
        }
        if isinstance(reply, pb.InspectReply):
            row |= {
                "num_running": reply.capacity.num_running,
                "num_waiting": reply.capacity.num_waiting,
                "num_queued_tokens": reply.capacity.num_queued_tokens,
                "num_free_blocks": reply.capacity.num_free_blocks,
                "metrics": {metric.name: metric.value for metric in reply.metrics},
            }
        pools[info.role.value].append(row)
    return {"pools": pools}


def metrics_report(replicas: Sequence[ReplicaInfo], inspections: Inspections) -> str:
    """Prometheus text: `baton_replica_<name>{replica=...,role=...}`."""
    samples: dict[str, list[str]] = {}
    for info in replicas:
        reply = inspections.get(info.epoch)
        is_up = isinstance(reply, pb.InspectReply)
        labels = f'{{replica="{info.replica_id}",role="{info.role.value}"}}'
        samples.setdefault("up", []).append(f"{labels} {int(is_up)}")
        if isinstance(reply, pb.InspectReply):
            for metric in reply.metrics:
                samples.setdefault(metric.name, []).append(f"{labels} {metric.value!r}")
            for term in TERMS:
                value = getattr(reply.audit, term)
                samples.setdefault(f"blocks_{term}", []).append(f"{labels} {value}")
    lines: list[str] = []
    for name, values in sorted(samples.items()):
        kind = "counter" if name.endswith("_total") else "gauge"
        lines.append(f"# TYPE baton_replica_{name} {kind}")
        lines += [f"baton_replica_{name}{value}" for value in values]
    return "\n".join(lines) + "\n"
