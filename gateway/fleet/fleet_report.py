"""Operators' reports about the replicas: leaks, status, and how well this gateway follows their
caches.

Their sources are the replicas' own accounts (`Inspections`) and this gateway's index of prefix
caches (`KvKnowledge`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import grpc.aio

from baton.core.ids import Epoch
from baton.core.metrics import Family, Kind, Sample
from baton.core.replicas import ReplicaInfo
from baton.gateway.fleet.links.kv_watch import KvKnowledge
from baton.proto import replica_pb2 as pb
from baton.proto.channels import explain

Inspections = Mapping[Epoch, pb.InspectReply | Exception]


Knowledge = Mapping[Epoch, KvKnowledge]
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


def status_report(
    replicas: Sequence[ReplicaInfo],
    inspections: Inspections,
    knowledge: Knowledge,
    *,
    is_secured: bool = False,
) -> dict[str, Any]:
    """The pools, their replicas, and how busy each is."""
    pools: dict[str, list[dict[str, Any]]] = {"prefill": [], "decode": []}
    for info in replicas:
        reply = inspections.get(info.epoch)
        row: dict[str, Any] = {
            "replica": info.replica_id,
            "epoch": info.epoch,
            "address": info.address,
            "is_ready": info.is_ready,
            "is_flipped": info.is_flipped,
            "is_reachable": isinstance(reply, pb.InspectReply),
            "max_model_len": info.max_model_len,
            "num_blocks": info.num_blocks,
            "kv_index": asdict(knowledge.get(info.epoch, KvKnowledge())),
        }
        if isinstance(reply, pb.InspectReply):
            row |= {
                "is_ready": info.is_ready and not reply.capacity.is_draining,
                "num_running": reply.capacity.num_running,
                "num_waiting": reply.capacity.num_waiting,
                "num_queued_tokens": reply.capacity.num_queued_tokens,
                "num_free_blocks": reply.capacity.num_free_blocks,
                "kv": {term: getattr(reply.audit, term) for term in TERMS},
                "slowness": reply.capacity.slowness or 1.0,
                "engine": _facts(reply),
                "metrics": {metric.name: metric.value for metric in reply.metrics},
            }
            if reply.HasField("flip"):
                row["flip"] = {"to": reply.flip.role, "failure": reply.flip.failure}
        else:
            row["trouble"] = _trouble(reply, is_secured=is_secured)
        pools[info.role.value].append(row)
    return {"pools": pools}


def _facts(reply: pb.InspectReply) -> dict[str, Any]:
    """What the replica reports of its engine, by the message's field names."""
    return {field.name: value for field, value in reply.engine.ListFields()}


def _trouble(reply: Exception | None, *, is_secured: bool) -> str:
    """Why a replica cannot be asked, with the remedy where there is one."""
    if reply is None:
        return "it is not known well enough yet to be asked"
    if isinstance(reply, grpc.aio.AioRpcError):
        return explain(reply, is_secured=is_secured)
    return repr(reply)


def knowledge_families(replicas: Sequence[ReplicaInfo], knowledge: Knowledge) -> list[Family]:
    """Metrics of how well this gateway follows each replica's cache."""
    followed = [
        ({"replica": info.replica_id}, knowledge.get(info.epoch, KvKnowledge()))
        for info in replicas
    ]
    return [
        Family(
            f"baton_gateway_{name}",
            kind,
            help,
            [Sample(labels, float(getattr(known, field))) for labels, known in followed],
        )
        for name, kind, field, help in _KNOWLEDGE
    ]


_KNOWLEDGE: tuple[tuple[str, Kind, str, str], ...] = (
    ("kv_index_blocks", "gauge", "num_blocks", "Blocks of a replica's cache in the index"),
    ("kv_index_synced", "gauge", "is_synced", "Whether the index follows a replica's cache"),
    ("kv_events_total", "counter", "num_events", "Changes of a replica's cache that were received"),
    ("kv_gaps_total", "counter", "num_gaps", "How often changes of a cache were missed"),
    ("kv_resyncs_total", "counter", "num_resyncs", "Snapshots of a cache after the first"),
)
