"""The registry's CPU time with many replicas and gateways, and how fast changes reach all of them.

    the registry's actor in a process of its own, with its gRPC port; in this process, on one event
    loop, replicas that send heartbeats and gateways that watch, with Baton's own clients

There is no Ray: a call through Serve is a pickle over a socket, and these calls are counted. The
cost of a real one (`python -m bench.fleet.serve_calls`) can be added with --serve-ms. Not included:
what gateways do with updates (bench/fleet/scale.py), the planner and the limits of tenants (each a
call a second from each gateway where they are on), and the progress reports of starting replicas.

With --registries 3 each has a process of its own, all replicas report to each, and gateways combine
them; the cost is the mean of the registries.

    python -m bench.fleet.registry [--replicas 10 100 1000] [--gateways 20] [--serve-ms 2.5]
                                   [--registries 1]
"""

from __future__ import annotations

import argparse
import asyncio
import pickle
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import psutil
from tests.gateway.fleet.known_replicas import LAYOUT, make_replica

from baton.core.ids import Epoch, new_epoch
from baton.core.replicas import HEARTBEAT_S, Membership, ReplicaInfo
from baton.platform.cluster.registry import registry_port
from baton.platform.cluster.registry.all_registries import AllRegistries
from baton.platform.cluster.registry.heartbeat_client import HeartbeatClient
from baton.platform.cluster.registry.registry_actor import RegistryActor
from baton.platform.cluster.registry.registry_port import RegistryPort
from baton.platform.cluster.registry.registry_watch import RegistryWatch
from baton.platform.cluster.registry.remote_registry import RemoteRegistry
from baton.platform.config.deployment import DeploymentConfig
from baton.platform.config.live import REGISTRY, divide
from baton.platform.registry.union_watch import UnionWatch, WatchedRegistry
from baton.platform.security.config import SecurityConfig
from bench.harness.command_line import benchmark_parser
from bench.harness.report import surroundings, table

NUM_LAYERS = 61
"""Layers of the KV layout, which changes messages by a few bytes only."""
NUM_CHANGES = 10
LIMIT_S = 120.0
HEAD_BYTES = 4


@dataclass(frozen=True, slots=True)
class Spent:
    """What one registry has spent so far."""

    cpu_s: float
    rss_bytes: int
    num_serve_calls: Counter[str]
    sent_bytes: int


# The registry's process.


class Answers:
    """Serves the actor over a socket, in place of Ray Serve."""

    def __init__(self) -> None:
        config = DeploymentConfig()
        self.actor = RegistryActor(config)
        self._told = divide(config).live[REGISTRY]
        self._num_calls = Counter[str]()
        self.sent_bytes = 0

    async def serve(self) -> None:
        registry_port.RegistryPort = _counting(self)  # type: ignore[misc]
        await self.actor.reconfigure(self._told)
        server = await asyncio.start_server(self._hear, "127.0.0.1", 0)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        calls = set[asyncio.Task[None]]()
        while frame := await _read(reader):
            number, name, args = pickle.loads(frame)
            call = asyncio.create_task(self._answer(number, name, args, writer))
            calls.add(call)
            call.add_done_callback(calls.discard)

    async def _answer(
        self, number: int, name: str, args: tuple[Any, ...], writer: asyncio.StreamWriter
    ) -> None:
        if name == "spent":
            answer: Any = self._spent()
        else:
            self._num_calls[name] += 1
            answer = await getattr(self.actor, name)(*args)
        frame = pickle.dumps((number, answer))
        self.sent_bytes += len(frame)
        _write(writer, frame)

    def _spent(self) -> Spent:
        rss_bytes = psutil.Process().memory_info().rss
        return Spent(time.process_time(), rss_bytes, self._num_calls.copy(), self.sent_bytes)


def _counting(answers: Answers) -> type[RegistryPort]:
    class Counting(RegistryPort):
        async def Watch(self, request: Any, context: Any) -> Any:
            reply = await super().Watch(request, context)
            answers.sent_bytes += reply.ByteSize()
            return reply

    return Counting


async def _read(reader: asyncio.StreamReader) -> bytes:
    """The next message; empty at the end."""
    try:
        head = await reader.readexactly(HEAD_BYTES)
        return await reader.readexactly(int.from_bytes(head))
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""


def _write(writer: asyncio.StreamWriter, frame: bytes) -> None:
    writer.write(len(frame).to_bytes(HEAD_BYTES) + frame)


# Its callers.


class Handle:
    """Replaces Serve's handle: `handle.name.remote(...)` is answered."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._open: dict[int, asyncio.Future[Any]] = {}
        self._num = 0
        self._reading = asyncio.create_task(self._read(reader))

    def __getattr__(self, name: str) -> Any:
        return _Method(self, name)

    async def call(self, name: str, args: tuple[Any, ...]) -> Any:
        self._num += 1
        number = self._num
        self._open[number] = answer = asyncio.get_running_loop().create_future()
        _write(self._writer, pickle.dumps((number, name, args)))
        try:
            return await answer
        finally:
            del self._open[number]

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while frame := await _read(reader):
            number, answer = pickle.loads(frame)
            if (waiting := self._open.get(number)) and not waiting.done():
                waiting.set_result(answer)


@dataclass(frozen=True, slots=True)
class _Method:
    handle: Handle
    name: str

    async def remote(self, *args: Any) -> Any:
        return await self.handle.call(self.name, args)


class Gateway:
    def __init__(self, registry: WatchedRegistry) -> None:
        self._registry = registry
        self._news = asyncio.Event()
        self.known: dict[Epoch, ReplicaInfo] = {}
        self.num_answers = 0

    async def follow(self) -> None:
        heard: tuple[Epoch | None, int] = (None, -1)
        while True:
            known: Membership = await self._registry.watch(*heard)
            heard = known.incarnation, known.version
            self.known = {info.epoch: info for info in known.replicas}
            self.num_answers += 1
            self._news.set()

    async def until_knows(self, *infos: ReplicaInfo) -> None:
        await self._until(lambda: all(self.known.get(it.epoch) == it for it in infos))

    async def until_forgets(self, info: ReplicaInfo) -> None:
        await self._until(lambda: info.epoch not in self.known)

    async def _until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not is_so():
                self._news.clear()
                await self._news.wait()


class Replica:
    def __init__(self, number: int, handles: Sequence[Any]) -> None:
        layout = replace(LAYOUT, num_layers=NUM_LAYERS)
        info = make_replica(f"decode-{number:032x}")
        self.info = replace(info, epoch=new_epoch(), layout=layout)
        self._heartbeats = [HeartbeatClient(SecurityConfig()) for _ in handles]
        lines = [
            RemoteRegistry(handle, heartbeats)
            for handle, heartbeats in zip(handles, self._heartbeats, strict=True)
        ]
        self._registry = lines[0] if len(lines) == 1 else AllRegistries(lines)
        self._has_ended = False
        self.num_failed = 0
        """Heartbeats that were not answered in time."""

    async def live(self) -> None:
        """Send heartbeats, spread over time as those of replicas that have run for long."""
        await asyncio.sleep(await self._tell() * random.random())
        while not self._has_ended:
            await asyncio.sleep(await self._tell() * random.uniform(0.9, 1.1))

    def end(self) -> None:
        """End without deregistering, as if its connection broke."""
        self._has_ended = True
        for heartbeats in self._heartbeats:
            heartbeats.hang_up()

    async def turn(self) -> None:
        self.info = replace(self.info, is_ready=not self.info.is_ready)
        await self._tell()

    async def _tell(self) -> float:
        try:
            return await self._registry.heartbeat(self.info)
        except TimeoutError:
            self.num_failed += 1
            return HEARTBEAT_S


@asynccontextmanager
async def _tasks(*coroutines: Any) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(each) for each in coroutines]
    try:
        yield
        for task in tasks:
            if task.done():
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def _processes(number: int) -> Iterator[list[int]]:
    """Run so many registries; yields their ports."""
    command = [sys.executable, "-m", __spec__.name, "--as-registry"]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(number)
    ]
    try:
        yield [int(process.stdout.readline()) for process in processes if process.stdout]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _watched(handles: Sequence[Any]) -> WatchedRegistry:
    lines = [RegistryWatch(handle, SecurityConfig()) for handle in handles]
    if len(lines) == 1:
        return lines[0]
    return UnionWatch({str(number): line for number, line in enumerate(lines)})


async def measure(
    num_replicas: int, num_gateways: int, seconds: float, serve_ms: float, num_registries: int
) -> list[tuple[str, float]]:
    with _processes(num_registries) as ports:
        streams = [await asyncio.open_connection("127.0.0.1", it, limit=1 << 26) for it in ports]
        handles = [Handle(*stream) for stream in streams]
        return await _measure(handles, num_replicas, num_gateways, seconds, serve_ms)


async def _measure(
    handles: Sequence[Handle],
    num_replicas: int,
    num_gateways: int,
    seconds: float,
    serve_ms: float,
) -> list[tuple[str, float]]:
    async def spent() -> Spent:
        told: list[Spent] = [await handle.call("spent", ()) for handle in handles]
        calls = Counter[str]()
        for one in told:
            calls += one.num_serve_calls
        number = len(told)
        return Spent(
            sum(one.cpu_s for one in told) / number,
            sum(one.rss_bytes for one in told) // number,
            Counter({name: calls[name] // number for name in calls}),
            sum(one.sent_bytes for one in told) // number,
        )

    def serve_s(before: Spent, after: Spent) -> float:
        """CPU seconds that real calls through Serve would add."""
        return (after.num_serve_calls - before.num_serve_calls).total() * serve_ms / 1e3

    replicas = [Replica(number, handles) for number in range(num_replicas)]
    gateways = [Gateway(_watched(handles)) for _ in range(num_gateways)]
    infos = [replica.info for replica in replicas]
    empty = await spent()
    async with _tasks(*(gateway.follow() for gateway in gateways)):
        began = time.monotonic()
        async with _tasks(*(replica.live() for replica in replicas)):
            await asyncio.gather(*(gateway.until_knows(*infos) for gateway in gateways))
            started_s = time.monotonic() - began
            started = await spent()
            await asyncio.sleep(40.0)  # after the changes, when updates to watchers become rare
            before, here_s = await spent(), time.process_time()
            at = time.monotonic()
            await asyncio.sleep(seconds)
            idle, here_s = await spent(), time.process_time() - here_s
            idle_s = time.monotonic() - at
            num_calls = idle.num_serve_calls - before.num_serve_calls
            took, change_cpu_s, change_bytes = [], [], []
            for _ in range(NUM_CHANGES):
                replica = random.choice(replicas)
                quiet = await spent()
                at = time.monotonic()
                await replica.turn()
                await asyncio.gather(*(gateway.until_knows(replica.info) for gateway in gateways))
                took.append(time.monotonic() - at)
                after = await spent()
                rest_s = (time.monotonic() - at) * (idle.cpu_s - before.cpu_s) / idle_s
                change_cpu_s.append(after.cpu_s - quiet.cpu_s - rest_s)
                change_bytes.append(after.sent_bytes - quiet.sent_bytes)
                await asyncio.sleep(1.0)
            at = time.monotonic()
            replicas[0].end()
            await asyncio.gather(*(gateway.until_forgets(replicas[0].info) for gateway in gateways))
            ended_s = time.monotonic() - at
    start_s = started.cpu_s - empty.cpu_s
    rate = num_calls.total() / idle_s
    idle_share = (idle.cpu_s - before.cpu_s) / idle_s
    return [
        ("idle: share of a core without Serve's part, %", 100 * idle_share),
        ("idle: all replicas and gateways together, % of a core", 100 * here_s / idle_s),
        ("idle: calls through Serve a second", rate),
        ("idle: the same with Serve's part, %", 100 * (idle_share + rate * serve_ms / 1e3)),
        (
            "idle: answers to gateways, kB/s",
            (idle.sent_bytes - before.sent_bytes) / idle_s / 1e3,
        ),
        ("a change: ms until every gateway knows, median", 1e3 * median(took)),
        ("a change: the longest of them", 1e3 * max(took)),
        ("a change: answers to gateways, kB", median(change_bytes) / 1e3),
        ("a change: CPU ms above that of rest", 1e3 * median(change_cpu_s)),
        ("one ends without a word: s until no gateway has it", ended_s),
        ("all start at once: s until every gateway knows all", started_s),
        ("all start at once: CPU s without Serve's part", start_s),
        ("all start at once: the same with it", start_s + serve_s(empty, started)),
        (
            "all start at once: answers to gateways, MB",
            (started.sent_bytes - empty.sent_bytes) / 1e6,
        ),
        ("heartbeats that were not answered in time", sum(it.num_failed for it in replicas)),
        ("memory, MB", idle.rss_bytes / 1e6),
        ("memory above an empty one, MB", (idle.rss_bytes - empty.rss_bytes) / 1e6),
    ]


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--replicas", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--gateways", type=int, default=20)
    parser.add_argument("--registries", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20.0, help="of rest")
    parser.add_argument("--serve-ms", type=float, default=0.0, help="CPU of a call through Serve")
    parser.add_argument("--as-registry", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.as_registry:
        asyncio.run(Answers().serve())
        return
    print(surroundings(), flush=True)
    columns = [
        asyncio.run(measure(number, args.gateways, args.seconds, args.serve_ms, args.registries))
        for number in args.replicas
    ]
    names = [name for name, _ in columns[0]]
    rows: list[tuple[str | float, ...]] = [
        (name, *(column[i][1] for column in columns)) for i, name in enumerate(names)
    ]
    header = [f"{number:,} replicas" for number in args.replicas]
    print(table((f"{args.gateways} gateways, {args.registries} registries", *header), rows))


if __name__ == "__main__":
    main()
