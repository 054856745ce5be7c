"""Examines a running deployment: asks its gateway for the replicas, then each replica.

Replicas may only be reachable from within the cluster: then run the doctor on a node.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import grpc
import grpc.aio
import msgspec

from baton.core.ids import Epoch, ReplicaId
from baton.core.kv_layout import KvLayout
from baton.core.replicas import Role
from baton.core.wording import count_of
from baton.platform.doctor.finding import Finding, fail, ok, warn
from baton.platform.doctor.matrix import LiveReplica, Pair, Size, TransportMeasurement
from baton.platform.doctor.node_checks import unexamined
from baton.platform.machine.node import NodeFacts
from baton.proto import replica_pb2 as pb
from baton.proto.channels import Channels
from baton.proto.kv_wire import layout_from_proto
from baton.proto.replica_pb2_grpc import ReplicaStub

EXAMINE_TIMEOUT_S = 30.0
PROBE_TIMEOUT_S = 60.0
REFUSED_REMEDY = (
    "run it with the `security` section that the replicas were started with, and with Ray's token "
    "(~/.ray/auth_token, RAY_AUTH_TOKEN) where theirs is derived from it; if they ask for none, "
    "with security.default_token: none"
)
PROBE_BYTES = (64 << 10, 4 << 20, 16 << 20)
NUM_ROUNDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaExamination:
    """One replica's answer."""

    replica: LiveReplica
    node: NodeFacts
    layout: KvLayout
    kernels: str
    """Its kernel backend, with the name of its order of sums."""
    skew_s: float
    """The seconds that its clock is ahead of ours; negative where it is behind."""
    uncertainty_s: float
    known_ways: tuple[pb.KnownWay, ...] = ()
    """The transports that it knows to each sender."""


def replicas_of(status: dict[str, Any]) -> tuple[list[LiveReplica], list[Finding]]:
    """The replicas that the gateway's /debug/status has, and a finding for each out of reach."""
    found: list[LiveReplica] = []
    findings: list[Finding] = []
    for role, rows in status["pools"].items():
        for row in rows:
            found.append(
                LiveReplica(
                    replica_id=ReplicaId(row["replica"]),
                    role=Role(role),
                    epoch=Epoch(row["epoch"]),
                    address=row["address"],
                )
            )
            if not row["is_reachable"]:
                seen = f"the gateway does not reach it: {row.get('trouble', 'it does not answer')}"
                remedy = "see its log, and the network between gateway and replica"
                findings.append(replace(fail("replica", seen, remedy), where=row["replica"]))
    return found, findings


def registries_of(status: dict[str, Any]) -> list[Finding]:
    """The state of several registries in the gateway's /debug/status."""
    told = status.get("registries", ())
    most = max((one["num_replicas"] or 0 for one in told if one["is_heard"]), default=0)
    findings: list[Finding] = []
    for one in told:
        if not one["is_heard"]:
            found = warn(
                "registry",
                f"the gateway does not reach it: {one['trouble'] or 'it does not answer'}",
                "see its log (`baton logs`) and its node; meanwhile gateways go by the others",
            )
        elif one["num_replicas"] < most:
            found = warn(
                "registry",
                f"it knows {count_of(one['num_replicas'], 'replica')}, and another one {most}",
                "see the network between it and the replicas' nodes, if it is so in a minute still",
            )
        else:
            found = ok("registry", f"it knows {count_of(most, 'replica')}")
        findings.append(replace(found, where=one["registry"]))
    return findings


class LiveSystem:
    def __init__(self, channels: Channels) -> None:
        self._channels = channels

    async def examine(
        self, replicas: Sequence[LiveReplica], folders: Sequence[str]
    ) -> tuple[list[ReplicaExamination], list[Finding]]:
        """Examine all replicas concurrently; with a finding for each that does not answer."""
        answers = await asyncio.gather(*(self._examine(one, folders) for one in replicas))
        examined = [answer for answer in answers if isinstance(answer, ReplicaExamination)]
        return examined, [answer for answer in answers if isinstance(answer, Finding)]

    async def measure(self, pair: Pair, transport: str, chosen: str) -> TransportMeasurement:
        """Small transfers first; the first error ends it."""
        receiver, sender = pair
        way = TransportMeasurement(
            receiver=receiver.replica_id,
            sender=sender.replica_id,
            transport=transport,
            chosen=chosen,
        )
        for num_bytes in PROBE_BYTES:
            try:
                reply = await self._probe(pair, transport, num_bytes)
            except grpc.aio.AioRpcError as error:
                return replace(way, error=self._channels.explain(error))
            if reply.error or not reply.round_s:
                return replace(way, error=reply.error or "nothing was measured")
            size = Size(num_bytes=reply.num_bytes, rounds_s=tuple(reply.round_s))
            latency_s = reply.latency_s if way.latency_s is None else way.latency_s
            way = replace(way, latency_s=latency_s, sizes=(*way.sizes, size))
        return way

    async def _probe(self, pair: Pair, transport: str, num_bytes: int) -> pb.ProbePeerReply:
        receiver, sender = pair
        stub = ReplicaStub(self._channels.to(receiver.address))
        peer = pb.ReplicaAddress(
            replica_id=sender.replica_id, epoch=sender.epoch, address=sender.address
        )
        request = pb.ProbePeerRequest(
            peer=peer, transport=transport, num_bytes=num_bytes, num_rounds=NUM_ROUNDS
        )
        return await stub.ProbePeer(request, timeout=PROBE_TIMEOUT_S)

    async def _examine(
        self, replica: LiveReplica, folders: Sequence[str]
    ) -> ReplicaExamination | Finding:
        request = pb.ExamineRequest(folders=folders)
        try:
            connecting = ReplicaStub(self._channels.to(replica.address))
            inspecting = pb.InspectRequest(without_audit=True)
            inspected = await connecting.Inspect(inspecting, timeout=EXAMINE_TIMEOUT_S)
            stub = ReplicaStub(self._channels.to(replica.address))
            asked_unix_s = time.time()
            reply = await stub.Examine(request, timeout=EXAMINE_TIMEOUT_S)
            answered_unix_s = time.time()
            node, layout = NodeFacts.from_json(reply.node), layout_from_proto(reply.layout)
        except grpc.aio.AioRpcError as error:
            reason = f"it cannot be asked: {self._channels.explain(error)}"
            is_refused = error.code() is grpc.StatusCode.UNAUTHENTICATED
            found = fail("node", reason, REFUSED_REMEDY) if is_refused else unexamined(reason)
            return replace(found, where=replica.replica_id)
        except (ValueError, msgspec.MsgspecError) as error:
            reason = f"it answers as another version would: {error}"
            return replace(unexamined(reason), where=replica.replica_id)
        skew_s, uncertainty_s = clock_skew(
            asked_unix_s, reply.arrived_unix_s, reply.unix_s, answered_unix_s
        )
        return ReplicaExamination(
            replica=replica,
            node=node,
            layout=layout,
            kernels=inspected.engine.kernels,
            skew_s=skew_s,
            uncertainty_s=uncertainty_s,
            known_ways=tuple(reply.ways),
        )


def clock_skew(
    asked: float, arrived: float, replied: float, answered: float
) -> tuple[float, float]:
    """The seconds by which the peer's clock is ahead, and their uncertainty, as in NTP: both
    directions are assumed equally fast. The peer's clock read `arrived` and `replied`.
    """
    skew = ((arrived - asked) + (replied - answered)) / 2
    travelled = (answered - asked) - (replied - arrived)
    return skew, max(0.0, travelled) / 2
