"""One replica, ready to serve: engine, worker and server of a role, put together.

Used by the Ray actors of `platform/deploy.py` and, without Ray, by tests and benches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import grpc.aio

from baton.core.ids import Epoch, ReplicaId, new_epoch
from baton.core.messages import ReplicaInfo, Role
from baton.decode_service.prefill_client import GrpcPrefillClient
from baton.decode_service.server import DecodeGrpc
from baton.decode_service.worker import DecodeSettings, DecodeWorker
from baton.engine.assemble import assemble_engine
from baton.engine.engine import Engine
from baton.kv_transfer.transport.grpc import KvTransferServicer
from baton.kv_transfer.transport.registry import TransportParts, create_transport
from baton.platform.config import DecodeConfig, DeploymentConfig, PrefillConfig
from baton.platform.replica_server import ReplicaGrpc, ReplicaServer, Worker
from baton.prefill_service.server import PrefillGrpc
from baton.prefill_service.worker import PrefillWorker
from baton.proto.kv_pb2_grpc import add_KvTransferServicer_to_server
from baton.proto.replica_pb2_grpc import (
    add_DecodeServicer_to_server,
    add_PrefillServicer_to_server,
)

Progress = Callable[[int, int], None]


@dataclass(slots=True)
class Replica:
    """A running replica. `info` is what it tells the registry."""

    info: ReplicaInfo
    worker: Worker
    server: ReplicaServer
    parts: TransportParts

    async def drain(self, timeout_s: float) -> bool:
        """Call itself unready and finish what it has; False if the time was not enough."""
        self.info = replace(self.info, is_ready=False)
        try:
            async with asyncio.timeout(timeout_s):
                await self.worker.drain()
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        self.worker.kv_feed.close()
        self.parts.switchboard.unplug(self.info.address)
        await self.worker.stop()
        await self.server.stop()


async def load_engine(
    config: DeploymentConfig, role: Role, folder: Path, progress: Progress | None = None
) -> Engine:
    """Read the weights in a thread, so that the event loop can report how far it is."""
    pool = config.prefill if role is Role.PREFILL else config.decode
    return await asyncio.to_thread(
        assemble_engine,
        folder,
        pool.engine,
        dtype=config.dtype,
        device=config.device,
        load_format=config.load_format,
        progress=progress,
    )


async def start_replica(
    config: DeploymentConfig,
    role: Role,
    engine: Engine,
    *,
    replica_id: ReplicaId,
    host: str,
    parts: TransportParts | None = None,
) -> Replica:
    """Wire `engine` into its role and listen on a free port of `host`.

    Replicas of one process that are to reach each other in memory share their `parts`.
    """
    epoch = new_epoch()
    parts = parts or TransportParts()
    if role is Role.PREFILL:
        return await _start_prefill(config.prefill, engine, epoch, replica_id, host, parts)
    return await _start_decode(config, engine, epoch, replica_id, host, parts)


async def _start_prefill(
    config: PrefillConfig,
    engine: Engine,
    epoch: Epoch,
    replica_id: ReplicaId,
    host: str,
    parts: TransportParts,
) -> Replica:
    worker = PrefillWorker(engine, epoch=epoch, max_queued_tokens=config.max_queued_tokens)

    def register(server: grpc.aio.Server) -> None:
        add_PrefillServicer_to_server(PrefillGrpc(worker), server)
        add_KvTransferServicer_to_server(KvTransferServicer(worker.outbox), server)

    server = ReplicaServer(ReplicaGrpc(worker, replica_id, Role.PREFILL), register)
    await worker.start()
    info = _info(engine, replica_id, epoch, Role.PREFILL, await server.start(host))
    info = replace(info, max_queued_tokens=config.max_queued_tokens)
    parts.switchboard.plug(info.address, worker.outbox)
    return Replica(info, worker, server, parts)


async def _start_decode(
    config: DeploymentConfig,
    engine: Engine,
    epoch: Epoch,
    replica_id: ReplicaId,
    host: str,
    parts: TransportParts,
) -> Replica:
    pool: DecodeConfig = config.decode
    worker = DecodeWorker(
        engine,
        replica_id=replica_id,
        epoch=epoch,
        prefill_client=GrpcPrefillClient(),
        transport=create_transport(config.transfer.transport, parts),
        settings=DecodeSettings(
            max_open=pool.max_open,
            max_leased_fraction=config.transfer.max_leased_fraction,
            prefill_timeout_s=config.transfer.prefill_timeout_s,
        ),
    )

    def register(server: grpc.aio.Server) -> None:
        add_DecodeServicer_to_server(DecodeGrpc(worker), server)

    server = ReplicaServer(ReplicaGrpc(worker, replica_id, Role.DECODE), register)
    await worker.start()
    info = _info(engine, replica_id, epoch, Role.DECODE, await server.start(host))
    return Replica(replace(info, max_open=pool.max_open), worker, server, parts)


def _info(
    engine: Engine, replica_id: ReplicaId, epoch: Epoch, role: Role, address: str
) -> ReplicaInfo:
    return ReplicaInfo(
        replica_id=replica_id,
        epoch=epoch,
        role=role,
        address=address,
        layout=engine.pool.layout,
        num_blocks=engine.pool.num_blocks,
        max_model_len=engine.max_model_len,
        max_open=0,
        max_queued_tokens=0,
    )
