"""Gateway, decode and prefill, each in a process of its own: no Ray, and no model.

    us -- HTTP --> gateway -- gRPC --> decode -- gRPC --> prefill

Everything is the real thing but the engine's runner, which echoes, and the registry, which is told
once who is there. The tokenizer is the demo model's. Event loops are uvloop's, as in Ray's workers.
"""

from __future__ import annotations

import asyncio
import math
import multiprocessing
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import psutil
import uvloop

from baton.core.ids import ReplicaId
from baton.core.messages import ReplicaInfo, Role
from baton.platform.config.deployment import DEMO_MODEL, DeploymentConfig, override
from baton.platform.machine.interpreter import spare_what_stays

HOST = "127.0.0.1"
VOCAB_SIZE = 4096
"""The demo model's."""
NUM_BLOCKS = 4096
START_LIMIT_S = 60.0
STOP_LIMIT_S = 20.0


@dataclass(frozen=True, slots=True)
class Running:
    """The processes, by name, and where to ask."""

    http_port: int
    processes: dict[str, psutil.Process]

    def cpu_seconds(self) -> dict[str, float]:
        """User and system time so far, in ticks of the kernel (10 ms)."""
        return {name: _cpu_seconds(process) for name, process in self.processes.items()}


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


@contextmanager
def running() -> Iterator[Running]:
    """Start all three, then end them. Raises TimeoutError if one does not come up."""
    with ExitStack() as stack:
        processes, infos = {}, []
        for role in (Role.PREFILL, Role.DECODE):
            child, info = stack.enter_context(_child(_replica, role))
            processes[role.value] = child
            infos.append(info)
        gateway, port = stack.enter_context(_child(_gateway, infos))
        yield Running(port, {"gateway": gateway, **processes})


@contextmanager
def _child(target: Any, argument: Any) -> Iterator[tuple[psutil.Process, Any]]:
    """A process, and what it says once it is ready."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process: BaseProcess = context.Process(target=target, args=(theirs, argument), daemon=True)
    process.start()
    theirs.close()  # so that it notices our end, and we its
    try:
        if not ours.poll(START_LIMIT_S):
            raise TimeoutError(f"{target.__name__}({argument}) did not come up")
        assert process.pid is not None
        yield psutil.Process(process.pid), ours.recv()
    finally:
        ours.close()
        process.join(STOP_LIMIT_S)
        process.kill()


def _replica(pipe: Connection, role: Role) -> None:
    uvloop.run(_serve_replica(pipe, role))


async def _serve_replica(pipe: Connection, role: Role) -> None:
    import torch  # a gateway has none, so this module must not import it for all

    from baton.engine.config import CacheConfig, EngineConfig
    from baton.engine.engine import Engine
    from baton.engine.passes.echo import EchoRunner, echo_info
    from baton.platform.replica.replica import start_replica

    torch.set_num_threads(1)
    info = echo_info(vocab_size=VOCAB_SIZE, max_model_len=2048)
    runner = EchoRunner(info, num_blocks=NUM_BLOCKS, is_verifying=False)
    engine = Engine(runner, EngineConfig(cache=CacheConfig(num_blocks=NUM_BLOCKS)))
    replica = await start_replica(
        DeploymentConfig(), role, engine, replica_id=ReplicaId(f"{role}-1"), host=HOST
    )
    spare_what_stays()
    pipe.send(replica.info)
    await _told_to_stop(pipe)
    await replica.stop()


def _gateway(pipe: Connection, infos: Sequence[ReplicaInfo]) -> None:
    uvloop.run(_serve_gateway(pipe, infos))


async def _serve_gateway(pipe: Connection, infos: Sequence[ReplicaInfo]) -> None:
    from baton.platform.cluster.gateway_node import GatewayNode
    from baton.platform.models.model_folder import find_model
    from baton.platform.registry.registry import Registry

    changes = {"gateway.host": HOST, "gateway.port": 0, "gateway.grpc_port": 0}
    node = GatewayNode(override(DeploymentConfig(), changes), find_model(DEMO_MODEL))
    registry = Registry(ttl_s=math.inf)
    for info in infos:
        registry.heartbeat(info)
    await node.start(registry)
    while not node.dispatcher.is_ready():
        await asyncio.sleep(0.01)
    spare_what_stays()
    pipe.send(node.server.http_port)
    await _told_to_stop(pipe)
    await node.stop(drain_s=1.0)


async def _told_to_stop(pipe: Connection) -> None:
    """Return when the other end of the pipe is closed, or its process gone."""
    try:
        await asyncio.to_thread(pipe.recv)
    except EOFError:
        return
