"""The CPU time of a call through Ray Serve in the process that answers it, above its idle CPU time.

    python -m bench.fleet.serve_calls [--seconds 20] [--per-second 50]

Runs on a cluster of its own with one node; the driver calls at an even pace. The calls are a
heartbeat of a replica, and one that returns a list of 1,000 replicas.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psutil
from tests.gateway.fleet.known_replicas import LAYOUT, make_replica

from baton.core.ids import Epoch
from baton.core.replicas import Membership
from baton.platform.cluster.local_cluster import OBJECT_STORE_BYTES, ray_environment
from baton.proto.membership_wire import heartbeat_from_proto, heartbeat_to_proto
from baton.proto.replica_pb2 import HeartbeatReply, HeartbeatRequest
from bench.harness.command_line import benchmark_parser
from bench.harness.report import surroundings, table

NUM_CPUS = 2
"""For Serve's controller and the answering actor."""
NUM_REPLICAS = 1000


class Answering:
    def __init__(self) -> None:
        infos = [make_replica(f"decode-{i}") for i in range(NUM_REPLICAS)]
        known = tuple(replace(info, layout=replace(LAYOUT)) for info in infos)
        self._known = Membership(incarnation=Epoch("r"), version=1, age_s=1.0, replicas=known)

    async def heartbeat(self, told: bytes) -> bytes:
        info = heartbeat_from_proto(HeartbeatRequest.FromString(told))
        return HeartbeatReply(address=info.address).SerializeToString()

    async def membership(self) -> Membership:
        return self._known

    async def cpu(self) -> tuple[int, float]:
        return os.getpid(), sum(psutil.Process().cpu_times()[:2])


async def main(seconds: float, per_second: float) -> None:
    os.environ.update(ray_environment())  # before its import
    import ray
    from ray import serve

    ray.init(
        num_cpus=NUM_CPUS,
        object_store_memory=OBJECT_STORE_BYTES,
        include_dashboard=False,
        log_to_driver=False,
    )
    serve.start(proxy_location="Disabled")
    options = {"num_cpus": 1}
    deployment = serve.deployment(name="Answering", ray_actor_options=options)
    handle = serve.run(deployment(Answering).bind(), name="calls", route_prefix=None)
    told = heartbeat_to_proto(make_replica("decode-1"), 0).SerializeToString()
    pid, _ = await handle.cpu.remote()
    process = psutil.Process(pid)

    def spent_s() -> float:
        return sum(process.cpu_times()[:2])

    async def pace(call: Callable[[], Any], rate: float) -> tuple[float, int]:
        """CPU seconds and number of calls."""
        before, began, num = spent_s(), time.monotonic(), 0
        while time.monotonic() - began < seconds:
            await call()
            num += 1
            await asyncio.sleep(max(0.0, began + num / rate - time.monotonic()))
        return spent_s() - before, num

    async def rest() -> None:
        await asyncio.sleep(0)

    for _ in range(50):
        await handle.heartbeat.remote(told)
    at_rest, _ = await pace(rest, 1.0)
    rows = []
    for name, call, rate in (
        ("a heartbeat", lambda: handle.heartbeat.remote(told), per_second),
        (f"a list of {NUM_REPLICAS:,}", handle.membership.remote, per_second / 5),
    ):
        cpu_s, num = await pace(call, rate)
        rows.append((name, num / seconds, 1e3 * (cpu_s - at_rest) / num))
    print(surroundings())
    print(f"at rest: {100 * at_rest / seconds:.2f}% of a core")
    print(table(("call through Serve", "calls a second", "CPU ms a call, answering process"), rows))
    serve.shutdown()  # type: ignore[no-untyped-call]
    ray.shutdown()


if __name__ == "__main__":
    parser = benchmark_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--per-second", type=float, default=50.0)
    args = parser.parse_args()
    asyncio.run(main(args.seconds, args.per_second))
