"""A replica in a process of its own, which can be stopped (SIGSTOP) and let go on."""

from __future__ import annotations

import base64
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import grpc.aio

from baton.core.replicas import ReplicaInfo, Role
from baton.proto import replica_pb2 as pb
from baton.proto.replica_pb2_grpc import ReplicaStub

SERVING = """
import asyncio, base64, pickle, sys, threading, time
from tests.in_process_fleet import echo_engine
from baton.core.ids import ReplicaId
from baton.core.replicas import Role
from baton.platform.config.deployment import DeploymentConfig, override
from baton.platform.replica.replica import start_replica

def spin():
    while True:
        pass

async def main():
    role = Role(sys.argv[1])
    engine = echo_engine(role, prefill_chunk=16)
    forward = engine.runner.forward
    def slowly(*args, **options):
        time.sleep(float(sys.argv[2]))
        return forward(*args, **options)
    engine.runner.forward = slowly
    for _ in range(int(sys.argv[3])):
        threading.Thread(target=spin, daemon=True).start()
    config = override(DeploymentConfig(), {"transfer.transport": "grpc"})
    replica = await start_replica(
        config, role, engine, replica_id=ReplicaId(f"slow-{role}"), host="127.0.0.1"
    )
    print(base64.b64encode(pickle.dumps(replica.info)).decode(), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@dataclass(frozen=True, slots=True)
class ReplicaProcess:
    info: ReplicaInfo
    pid: int

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    async def num_held(self) -> int:
        """Blocks that requests, leases or quarantine hold."""
        async with grpc.aio.insecure_channel(self.info.address) as channel:
            reply = await ReplicaStub(channel).Inspect(pb.InspectRequest(), wait_for_ready=True)
        assert not reply.audit.violations
        return reply.audit.live + reply.audit.leased + reply.audit.quarantined


@contextmanager
def replica_process(
    role: Role, *, step_s: float, num_spinning: int = 0
) -> Iterator[ReplicaProcess]:
    """One whose steps take at least so long, with so many threads that are never done."""
    command = [sys.executable, "-c", SERVING, role.value, str(step_s), str(num_spinning)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            info = pickle.loads(base64.b64decode(process.stdout.readline()))
            yield ReplicaProcess(info, process.pid)
        finally:
            process.kill()
