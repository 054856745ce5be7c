"""A replica in a process of its own, whose steps sleep for a given time and use hardly any CPU.

    python -m bench.paced.replica ROLE NAME ASK_AFTER_S      prints its ReplicaInfo
    stdin:  pace 10          from now on every step takes ten times as long
            lossy 0.1        a tenth of the incoming pieces of KV is lost, a tenth cuts the stream,
                             a tenth is late; a tenth of its cache events is lost

It stands for a replica with a device of its own, so that several fit on the cores of one machine.
"""

from __future__ import annotations

import asyncio
import base64
import os
import pickle
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import Self

from baton.core.chaos import ChaosRule, Fault
from baton.core.ids import ReplicaId
from baton.core.replicas import ReplicaInfo, Role
from baton.core.step_times import StepTimes
from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig
from baton.engine.engine import Engine
from baton.engine.passes.echo import echo_info
from baton.kv_transfer.transports import TransportParts
from baton.platform.config.deployment import DeploymentConfig, override
from baton.platform.replica.replica import start_replica
from baton.proto.channels import Channels
from baton.proto.pulse import PingTiming
from bench.paced.runner import PacedRunner

PACE = StepTimes(constant_s=0.004, token_s=1e-4)
"""4 ms a step, and 10,000 prompt tokens a second."""
NUM_BLOCKS, BLOCK_SIZE, CHUNK = 2048, 16, 256


@dataclass(frozen=True, slots=True)
class PacedReplica:
    """The process as its parent sees it, and its ReplicaInfo."""

    info: ReplicaInfo
    process: subprocess.Popen[str]

    @classmethod
    def of(cls, process: subprocess.Popen[str]) -> Self:
        """The replica of a process that was started; waits until it serves."""
        assert process.stdout is not None
        return cls(pickle.loads(base64.b64decode(process.stdout.readline())), process)

    def tell(self, what: str) -> None:
        assert self.process.stdin is not None
        print(what, file=self.process.stdin, flush=True)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)


def spawn(role: Role, number: int, ping_timing: PingTiming) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", __name__, role.value, f"{role}-{number}"]
    command.append(str(ping_timing.ask_after_s))
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def lossy(rate: float) -> tuple[ChaosRule, ...]:
    faults = (Fault.DROP, Fault.CUT, Fault.DELAY)
    pieces = [ChaosRule(at="transfer.piece", fault=fault, rate=rate) for fault in faults]
    return (*pieces, ChaosRule(at="kv_events", fault=Fault.DROP, rate=rate))


async def serve(role: Role, name: str, ping_timing: PingTiming) -> None:
    info = echo_info(vocab_size=256, max_model_len=4096, num_layers=3)
    runner = PacedRunner(info, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, times=PACE)
    engine_config = EngineConfig(
        cache=CacheConfig(block_size=BLOCK_SIZE, num_blocks=NUM_BLOCKS),
        scheduler=SchedulerConfig(prefill_chunk=CHUNK if role is Role.PREFILL else None),
    )
    config = override(DeploymentConfig(), {"transfer.transport": "grpc", "chaos.enabled": True})
    replica = await start_replica(
        config,
        role,
        Engine(runner, engine_config),
        replica_id=ReplicaId(name),
        host="127.0.0.1",
        parts=TransportParts(channels=Channels(ping_timing=ping_timing)),
    )
    print(base64.b64encode(pickle.dumps(replica.info)).decode(), flush=True)
    while told := await asyncio.to_thread(sys.stdin.readline):
        what, number = told.split()
        if what == "pace":
            runner.factor = float(number)
        elif replica.chaos is not None:
            replica.chaos.set(lossy(float(number)) if float(number) else (), seed=1)
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(serve(Role(sys.argv[1]), sys.argv[2], PingTiming(ask_after_s=float(sys.argv[3]))))
