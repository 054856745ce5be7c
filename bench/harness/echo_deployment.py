"""Gateway, decode and prefill replicas, each in a process of its own: no Ray, and no model.

    benchmark -- HTTP --> gateway -- gRPC --> decode -- gRPC --> prefill

All is real except the engine's runner, which echoes, and the registry, which is given the replicas
once. Passes take no time, or sleep for a configured one, which leaves the cores to the rest. The
tokenizer is the demo model's. Event loops are uvloop's, as in Ray's workers.
"""

from __future__ import annotations

import asyncio
import math
import multiprocessing
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import psutil
import uvloop

from baton.core.ids import ReplicaId
from baton.core.replicas import ReplicaInfo, Role
from baton.core.step_times import StepTimes
from baton.platform.config.deployment import DEMO_MODEL, DeploymentConfig, override
from baton.platform.machine.interpreter import freeze_present_objects
from baton.router.defaults import DEFAULT_POLICY

HOST = "127.0.0.1"
VOCAB_SIZE = 4096
"""The size of the demo model's vocabulary."""
NUM_BLOCKS = 4096
START_LIMIT_S = 60.0
STOP_LIMIT_S = 20.0


@dataclass(frozen=True, slots=True)
class Running:
    """The running processes by name, and the gateway's address."""

    http_port: int
    admin_port: int
    processes: dict[str, psutil.Process]

    def cpu_seconds(self) -> dict[str, float]:
        """User and system time so far, in ticks of the kernel (10 ms)."""
        return {name: _cpu_seconds(process) for name, process in self.processes.items()}


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    num_prefill: int = 1
    num_decode: int = 1
    policy: str = DEFAULT_POLICY
    step_times: StepTimes = field(default_factory=StepTimes)
    """The least times of each replica's passes."""
    prefill_chunk: int | None = None
    """The most tokens of a prompt in one pass; None: as many as fit."""


@contextmanager
def running(layout: Layout | None = None) -> Iterator[Running]:
    """Start all processes, and end them on leaving. Raises TimeoutError if one does not come up."""
    layout = layout or Layout()
    numbers = {Role.PREFILL: layout.num_prefill, Role.DECODE: layout.num_decode}
    with ExitStack() as stack:
        processes, infos = {}, []
        for role, num_replicas in numbers.items():
            for number in range(1, num_replicas + 1):
                what = (ReplicaId(f"{role.value}-{number}"), role, layout)
                child, info = stack.enter_context(_child(_replica, what))
                processes[role.value if number == 1 else what[0]] = child
                infos.append(info)
        gateway, (port, admin_port) = stack.enter_context(_child(_gateway, (infos, layout.policy)))
        yield Running(port, admin_port, {"gateway": gateway, **processes})


@contextmanager
def _child(target: Any, argument: Any) -> Iterator[tuple[psutil.Process, Any]]:
    """A child process, and the message it sends once it is ready."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process: BaseProcess = context.Process(target=target, args=(theirs, argument), daemon=True)
    process.start()
    theirs.close()  # so that each side notices when the other ends
    try:
        if not ours.poll(START_LIMIT_S):
            raise TimeoutError(f"{target.__name__}({argument}) did not come up")
        assert process.pid is not None
        yield psutil.Process(process.pid), ours.recv()
    finally:
        ours.close()
        process.join(STOP_LIMIT_S)
        process.kill()


def _replica(pipe: Connection, what: tuple[ReplicaId, Role, Layout]) -> None:
    uvloop.run(_serve_replica(pipe, *what))


async def _serve_replica(
    pipe: Connection, replica_id: ReplicaId, role: Role, layout: Layout
) -> None:
    import torch  # a gateway does not import torch, so this module must not either

    from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig
    from baton.engine.engine import Engine
    from baton.engine.passes.echo import echo_info
    from baton.platform.replica.replica import start_replica
    from bench.paced.runner import PacedRunner

    torch.set_num_threads(1)
    info = echo_info(vocab_size=VOCAB_SIZE, max_model_len=2048)
    runner = PacedRunner(info, num_blocks=NUM_BLOCKS, times=layout.step_times)
    config = EngineConfig(
        cache=CacheConfig(num_blocks=NUM_BLOCKS),
        scheduler=SchedulerConfig(prefill_chunk=layout.prefill_chunk),
    )
    engine = Engine(runner, config)
    replica = await start_replica(
        DeploymentConfig(), role, engine, replica_id=replica_id, host=HOST
    )
    freeze_present_objects()
    pipe.send(replica.info)
    await _told_to_stop(pipe)
    await replica.stop()


def _gateway(pipe: Connection, what: tuple[Sequence[ReplicaInfo], str]) -> None:
    uvloop.run(_serve_gateway(pipe, *what))


async def _serve_gateway(pipe: Connection, infos: Sequence[ReplicaInfo], policy: str) -> None:
    from baton.platform.cluster.gateway_node import GatewayNode
    from baton.platform.models.model_folder import find_model
    from baton.platform.registry.registry import Registry

    changes = {
        "gateway.host": HOST,
        "gateway.port": 0,
        "gateway.grpc_port": 0,
        "gateway.admin_port": 0,
        "gateway.policy": policy,
    }
    node = GatewayNode(override(DeploymentConfig(), changes), find_model(DEMO_MODEL))
    registry = Registry(ttl_s=math.inf)
    for info in infos:
        registry.heartbeat(info)
    await node.start(registry)
    while not node.dispatcher.is_ready():
        await asyncio.sleep(0.01)
    freeze_present_objects()
    pipe.send((node.server.http_port, node.server.admin_port))
    await _told_to_stop(pipe)
    await node.stop(drain_s=1.0)


async def _told_to_stop(pipe: Connection) -> None:
    """Returns when the other end of the pipe is closed, or its process is gone."""
    try:
        await asyncio.to_thread(pipe.recv)
    except EOFError:
        return
