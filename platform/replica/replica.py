"""One replica, ready to serve: engine, worker and server of a role, put together.

Used by the Ray actors of `platform/cluster/replica_actor.py` and, without Ray, by tests and
benches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

import grpc.aio

from baton.core.chaos import Chaos
from baton.core.ids import ReplicaId, new_epoch
from baton.core.replicas import ReplicaInfo, Role
from baton.core.wire_security import WireSecurity
from baton.decode_service.server import DecodeGrpc
from baton.decode_service.worker import DecodeWorker
from baton.engine.assemble import assemble_engine
from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.mesh.ranks import ONE_RANK, MeshGroups
from baton.kv_transfer.exchange import ExchangeParts
from baton.kv_transfer.handoff.transport import SendingHalf, Transport
from baton.kv_transfer.pulling.peer import PeerGrpc
from baton.kv_transfer.tiers.assemble import create_stack
from baton.kv_transfer.transport.auto.probe import ProbeOffers, Prober
from baton.kv_transfer.transport.chaotic import ChaoticTransport
from baton.kv_transfer.transport.control.client import ControlClient
from baton.kv_transfer.transport.control.servicer import KvTransferServicer
from baton.kv_transfer.transports import (
    TransportParts,
    Transports,
    buffer_bytes,
    create_sending_halves,
)
from baton.platform.config.deployment import DeploymentConfig
from baton.platform.observe.otel import start_tracing
from baton.platform.replica.engine_facts import engine_facts
from baton.platform.replica.examination import Examiner
from baton.platform.replica.peer_probing import PeerProbing
from baton.platform.replica.replica_server import Identity, ReplicaGrpc, ReplicaServer
from baton.platform.replica.step_cost import step_cost
from baton.platform.security.connections import load_security
from baton.prefill_service.server import PrefillGrpc
from baton.prefill_service.worker import PrefillWorker
from baton.proto import replica_pb2 as pb
from baton.proto.channels import Channels
from baton.proto.replica_pb2_grpc import (
    add_DecodeServicer_to_server,
    add_PeerServicer_to_server,
    add_PrefillServicer_to_server,
)

Progress = Callable[[int, int], None]
NO_ADAPTERS: Mapping[str, Path] = MappingProxyType({})


@dataclass(slots=True)
class Replica:
    registered: ReplicaInfo
    """Constant for this incarnation."""
    worker: PrefillWorker | DecodeWorker
    server: ReplicaServer
    books: ReplicaGrpc
    """What it answers to operators."""
    parts: TransportParts
    transports: Transports
    halves: dict[str, SendingHalf]
    """What it sends by."""
    transfers: KvTransferServicer
    probing: PeerProbing
    engine_facts: pb.EngineFacts
    chaos: Chaos | None = None
    is_flipping: bool = False
    """It is about to leave its role, if it may, or on its way: the registry counts on it no
    more."""

    @property
    def info(self) -> ReplicaInfo:
        """What it reports to the registry now."""
        is_ready = not (self.worker.core.is_draining or self.is_flipping)
        return replace(self.registered, is_ready=is_ready, is_flipping=self.is_flipping)

    def reconfigure(self, before: DeploymentConfig, after: DeploymentConfig) -> None:
        """Go by the live settings of `after`. Faults that somebody set meanwhile stay, unless the
        configured ones are others."""
        if isinstance(self.worker, DecodeWorker):
            self.worker.allow(after.decode.max_open)
        else:
            self.worker.allow(after.prefill.max_queued_tokens)
        max_open, max_queued_tokens = _limits(after, self.registered.role)
        self.registered = replace(
            self.registered, max_open=max_open, max_queued_tokens=max_queued_tokens
        )
        if self.chaos is not None and before.chaos != after.chaos:
            self.chaos.set(after.chaos.rules, after.chaos.seed)

    def metrics(self) -> dict[str, float]:
        """Single numbers, by Prometheus name; labels may stand behind it."""
        chaos = {} if self.chaos is None else self.chaos.as_metrics()
        return {
            **self.worker.metrics(),
            **self.probing.metrics(),
            **self.server.metrics(),
            **chaos,
        }

    async def drain(self, timeout_s: float) -> bool:
        """Call itself unready and let go what it has; False if the time was not enough."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.worker.drain()
        except TimeoutError:
            return False
        return True

    @property
    def num_gateway_streams(self) -> int:
        """Open streams of gateways: their sessions, and those of cache events."""
        return self.worker.num_sessions + self.worker.core.kv_feed.num_followers

    async def stop(self) -> None:
        await self.stop_serving()
        await self.send_spans()

    async def stop_serving(self) -> None:
        self.worker.core.kv_feed.close()
        self.transfers.leave()
        self.parts.switchboard.unplug(self.info.address)
        await self.worker.stop()
        await self.server.stop()
        await self.transports.close()
        for half in self.halves.values():
            await half.close()
        await self.parts.channels.close()

    async def send_spans(self) -> None:
        """The last of them, for as long as a collector that does not answer is waited for."""
        await asyncio.to_thread(self.worker.core.tracer.close)


async def load_engine(
    config: DeploymentConfig,
    role: Role,
    folder: Path,
    progress: Progress | None = None,
    groups: MeshGroups = ONE_RANK,
    *,
    adapters: Mapping[str, Path] = NO_ADAPTERS,
) -> Engine:
    """Read the weights in a thread, so that the event loop can report how far it is.

    A draft model is named by its folder: see `baton.platform.models.draft_folder`. `adapters`: the
    folders of the deployment's adapters, by name.
    """
    return await asyncio.to_thread(
        assemble_engine,
        folder,
        engine_config(config, role),
        dtype=config.dtype,
        device=config.device,
        load_format=config.load_format,
        quantize=config.quantize,
        deterministic=config.deterministic,
        streaming=config.streaming,
        adapters=adapters,
        progress=progress,
        groups=groups,
    )


def engine_config(config: DeploymentConfig, role: Role) -> EngineConfig:
    """What its pool configures, with what KV takes beside the cache on its way in. All ranks of an
    engine need the same."""
    return replace(config.engine(role), buffer_bytes=buffer_bytes(config.kv_ways))


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
    parts = parts or TransportParts(channels=Channels(_security(config)))
    arena, require = engine.runner.cache.arena, config.transfer.require
    parts = replace(parts, device=arena.device, arena=arena, require=require)
    transports = Transports(parts)
    chaos = config.chaos.start(replica_id)
    exchange = ExchangeParts(
        epoch=new_epoch(),
        transport=_transport(config, transports, chaos),
        channels=parts.channels,
        config=config.transfer,
        stack=create_stack(config.tiers, engine.pool.layout, chaos),
        tiers=config.tiers,
        may_reserve=partial(_is_spared, chaos, "pool.reserve"),
        may_keep=partial(_is_spared, chaos, "transfer.lease"),
    )
    it = _Ingredients(
        config=config,
        engine=engine,
        replica_id=replica_id,
        exchange=exchange,
        halves=create_sending_halves(parts, arena),
    )
    worker = it.prefill_worker() if role is Role.PREFILL else it.decode_worker()
    probing = PeerProbing(transports, Prober(ControlClient(parts.channels)), exchange.epoch)
    examiner = Examiner(engine.pool.layout, transports)
    facts = engine_facts(config.model_name, engine)
    identity = Identity(replica_id, role, facts)
    inspect = ReplicaGrpc(worker, identity, probing, examiner, chaos)
    transfers = it.transfers(worker)
    register = partial(it.register, worker, transfers)
    server = ReplicaServer(inspect, register, parts.channels.security)
    worker.core.meter.cost = step_cost(engine.runner)
    worker.core.tracer = start_tracing(config.tracing, f"baton-{role}", replica_id)
    await worker.core.start()
    info = it.info(role, await server.start(host))
    parts.switchboard.plug(info.address, worker.core.kv.outbox)
    return Replica(
        registered=info,
        worker=worker,
        server=server,
        books=inspect,
        parts=parts,
        transports=transports,
        halves=it.halves,
        transfers=transfers,
        probing=probing,
        engine_facts=facts,
        chaos=chaos,
    )


def _security(config: DeploymentConfig) -> WireSecurity:
    return load_security(config.security, allows_plain_kv=config.transfer.allow_plain)


def _transport(config: DeploymentConfig, transports: Transports, chaos: Chaos | None) -> Transport:
    transport = transports.get(config.transfer.transport)
    return transport if chaos is None else ChaoticTransport(transport, chaos)


def _is_spared(chaos: Chaos | None, point: str) -> bool:
    return chaos is None or chaos.draw(point) is None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ingredients:
    """What a replica of either role is made of."""

    config: DeploymentConfig
    engine: Engine
    replica_id: ReplicaId
    exchange: ExchangeParts
    """How KV comes here."""
    halves: dict[str, SendingHalf]
    """How it goes."""

    def prefill_worker(self) -> PrefillWorker:
        max_queued_tokens = self.config.prefill.max_queued_tokens
        return PrefillWorker(self.engine, self.exchange, max_queued_tokens=max_queued_tokens)

    def decode_worker(self) -> DecodeWorker:
        return DecodeWorker(
            self.engine,
            self.exchange,
            replica_id=self.replica_id,
            max_open=self.config.decode.max_open,
        )

    def transfers(self, worker: PrefillWorker | DecodeWorker) -> KvTransferServicer:
        kv = worker.core.kv
        probes = ProbeOffers(kv.pool, kv.sender, kv.owner, may_lend=lambda: not worker.core.is_shut)
        return KvTransferServicer(kv.outbox, kv.epoch, self.halves, probes)

    def register(
        self,
        worker: PrefillWorker | DecodeWorker,
        transfers: KvTransferServicer,
        server: grpc.aio.Server,
    ) -> None:
        """The services of the worker's role, and what peers of either may ask."""
        if isinstance(worker, DecodeWorker):
            add_DecodeServicer_to_server(DecodeGrpc(worker), server)
        else:
            add_PrefillServicer_to_server(PrefillGrpc(worker), server)
        add_PeerServicer_to_server(
            PeerGrpc(worker, self.exchange.epoch, worker.core.thread), server
        )
        transfers.serve(server)

    def info(self, role: Role, address: str) -> ReplicaInfo:
        max_open, max_queued_tokens = _limits(self.config, role)
        return ReplicaInfo(
            replica_id=self.replica_id,
            epoch=self.exchange.epoch,
            role=role,
            address=address,
            layout=self.engine.pool.layout,
            num_blocks=self.engine.pool.num_blocks,
            max_model_len=self.engine.max_model_len,
            max_open=max_open,
            max_queued_tokens=max_queued_tokens,
            max_chunk=self.engine.max_chunk,
            model=self.config.model_identity,
        )


def _limits(config: DeploymentConfig, role: Role) -> tuple[int, int]:
    """Requests, and tokens of prompts, that a replica takes at once."""
    if role is Role.DECODE:
        return config.decode.max_open, 0
    return 0, config.prefill.max_queued_tokens
