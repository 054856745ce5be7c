"""Many gateways and many replicas: what a gateway pays to know them all, and to decide.

    fake replicas in four processes (bench/fake_replicas.py), gateways in one each; every gateway
    has a stream to each replica, and follows each cache, over connections of its own

A gateway is measured for ten seconds in which nobody asks for anything, then decides 200 times: the
prompt of 4,096 tokens is named, looked up, and placed, but not sent.

    python -m bench.fleet_scale [--replicas 1000] [--gateways 1]
"""

from __future__ import annotations

import argparse
import asyncio
import pickle
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import median

import psutil
from bench.report import percentile, surroundings, table
from tests.gateway.fleet.known_replicas import make_replica
from tests.gateway.fleet.scripted_replica import snapshot

from baton.core.ids import new_request_id
from baton.core.replicas import ReplicaInfo, Role
from baton.core.sampling import SamplingParams
from baton.gateway.fleet.dispatch import ReplicaDispatcher
from baton.gateway.requests.generation import Generation
from baton.router.placer import Routing
from baton.router.policies.cost import Cost

NUM_PROCESSES = 4
SECONDS, NUM_DECISIONS, NUM_TOKENS = 10.0, 200, 4096
LIMIT_S = 240.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Paid:
    """By one gateway."""

    connected_s: float
    num_connected: int
    megabytes: float
    frames_per_s: float
    cpu_share: float
    """Of one core, with nothing asked."""
    decision_ms: float
    decision_p99_ms: float


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.fleet_scale", description=__doc__)
    parser.add_argument("--replicas", type=int, default=1000)
    parser.add_argument("--gateways", type=int, default=1)
    parser.add_argument("--as-gateway", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.as_gateway:
        pickle.dump(asyncio.run(gateway(pickle.load(sys.stdin.buffer))), sys.stdout.buffer)
        return
    print(surroundings(), flush=True)
    print(report(args.replicas, args.gateways))


def report(num_replicas: int, num_gateways: int) -> str:
    with fake_replicas(num_replicas) as infos:
        command = [sys.executable, "-m", __spec__.name, "--as-gateway"]
        gateways = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            for _ in range(num_gateways)
        ]
        for each in gateways:
            assert each.stdin is not None
            pickle.dump(infos, each.stdin)
            each.stdin.close()
        paid = [read(each) for each in gateways]
    rows: list[tuple[str, str | float]] = [
        ("replicas connected, of each gateway", f"{min(p.num_connected for p in paid):,}"),
        ("seconds until all were", max(p.connected_s for p in paid)),
        ("MB that a gateway grew by", median(p.megabytes for p in paid)),
        (
            "frames a second, of a gateway",
            median(p.frames_per_s for p in paid),
        ),
        ("the same of all", sum(p.frames_per_s for p in paid)),
        ("share of a core, of a gateway, %", 100 * median(p.cpu_share for p in paid)),
        ("a decision, CPU ms", median(p.decision_ms for p in paid)),
        ("p99", max(p.decision_p99_ms for p in paid)),
    ]
    return table((f"{num_replicas:,} replicas, {num_gateways} gateways", ""), rows)


def read(process: subprocess.Popen[bytes]) -> Paid:
    assert process.stdout is not None
    paid: Paid = pickle.load(process.stdout)
    process.wait()
    return paid


@contextmanager
def fake_replicas(number: int) -> Iterator[list[ReplicaInfo]]:
    """Half of them of prefill."""
    command = [sys.executable, "-m", "bench.fake_replicas"]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(NUM_PROCESSES)
    ]
    try:
        ports = [int(process.stdout.readline()) for process in processes if process.stdout]
        yield [fake(i, ports[i % NUM_PROCESSES]) for i in range(number)]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def fake(number: int, port: int) -> ReplicaInfo:
    role = Role.PREFILL if number // NUM_PROCESSES % 2 else Role.DECODE
    return replace(make_replica(f"{role}-{number}", role=role), address=f"127.0.0.1:{port}")


async def gateway(infos: Sequence[ReplicaInfo]) -> Paid:
    dispatcher = ReplicaDispatcher(Routing(Cost()), max_waiting=9, no_replica_grace_s=60.0)
    fleet, process, began = dispatcher.fleet, psutil.Process(), time.monotonic()
    num_bytes = process.memory_info().rss
    await fleet.apply(snapshot(*infos))

    def num_connected() -> int:
        return len(fleet.connected) + len(fleet.lending)

    while time.monotonic() - began < LIMIT_S and (
        num_connected() < len(infos) or not fleet.warm_up.is_over
    ):
        await asyncio.sleep(0.1)
    connected_s = time.monotonic() - began
    num_heard, cpu_s, at = heard(dispatcher), time.process_time(), time.monotonic()
    await asyncio.sleep(SECONDS)
    seconds = time.monotonic() - at
    cpu_share = (time.process_time() - cpu_s) / seconds
    num_batches = heard(dispatcher) - num_heard
    took = [await decision_ms(dispatcher) for _ in range(NUM_DECISIONS)]
    return Paid(
        connected_s=connected_s,
        num_connected=num_connected(),
        megabytes=(process.memory_info().rss - num_bytes) / 1e6,
        frames_per_s=2 * num_batches / seconds,  # as many capacities come as batches of events
        cpu_share=cpu_share,
        decision_ms=median(took),
        decision_p99_ms=percentile(took, 99),
    )


def heard(dispatcher: ReplicaDispatcher) -> int:
    """Batches of events so far."""
    return sum(known.num_events for known in dispatcher.fleet.links.kv_knowledge().values())


async def decision_ms(dispatcher: ReplicaDispatcher) -> float:
    prompt = tuple(random.randrange(150_000) for _ in range(NUM_TOKENS))
    generation = Generation(
        request_id=new_request_id(), prompt=prompt, sampling=SamplingParams(max_tokens=8)
    )
    began = time.thread_time()
    await dispatcher.estimate(generation)
    return 1e3 * (time.thread_time() - began)


if __name__ == "__main__":
    main()
