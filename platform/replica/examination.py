"""The answer to `Replica.Examine`: machine, clock, KV layout, transports."""

from __future__ import annotations

import asyncio
import time

from baton.core.kv_layout import KvLayout
from baton.kv_transfer.transport.auto.auto import AutoTransport
from baton.kv_transfer.transport.auto.known_peers import WayReport
from baton.kv_transfer.transports import AUTO, Transports
from baton.platform.machine.node import read_node
from baton.proto import replica_pb2 as pb
from baton.proto.kv_wire import layout_to_proto


class Examiner:
    def __init__(self, layout: KvLayout, transports: Transports) -> None:
        self._layout = layout
        self._transports = transports

    async def examine(self, request: pb.ExamineRequest) -> pb.ExamineReply:
        """Reads the machine on another thread, so that requests are not delayed."""
        arrived_unix_s = time.time()
        facts = await asyncio.to_thread(read_node, tuple(request.folders))
        return pb.ExamineReply(
            arrived_unix_s=arrived_unix_s,
            node=facts.to_json(),
            layout=layout_to_proto(self._layout),
            ways=[_to_proto(way) for way in self._ways()],
            unix_s=time.time(),
        )

    def _ways(self) -> list[WayReport]:
        auto = self._transports.get(AUTO)
        return auto.ways() if isinstance(auto, AutoTransport) else []


def _to_proto(way: WayReport) -> pb.KnownWay:
    return pb.KnownWay(
        address=way.address,
        epoch=way.epoch,
        transport=way.name,
        is_chosen=way.is_chosen,
        is_demoted=way.is_demoted,
        bytes_per_s=way.bytes_per_s,
        latency_s=way.latency_s,
        reason=way.reason,
    )
