"""One gateway of `bench.fleet.scale`, in a process of its own: its CPU time in each phase.

It receives a phase and the replicas, and answers with results by name, pickled. A *stall* is the
longest time between two iterations of the event loop: in wall time, and in CPU time of this
thread, which other processes do not lengthen.
"""

from __future__ import annotations

import asyncio
import pickle
import random
import re
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from statistics import median, quantiles
from unittest.mock import patch

from tests.gateway.fleet.scripted_replica import snapshot

from baton.core.ids import new_request_id
from baton.core.replicas import Capacity, ReplicaInfo
from baton.core.sampling import SamplingParams
from baton.gateway.fleet.dispatch import ReplicaDispatcher
from baton.gateway.fleet.links.decode_link import DecodeLink
from baton.gateway.fleet.links.replica_link import ReplicaLink
from baton.gateway.requests.generations.generation import Generation
from baton.platform.machine.interpreter import freeze_present_objects, freeze_startup_objects
from baton.proto import replica_pb2 as pb
from baton.proto.capacity_wire import capacity_to_proto
from baton.router.placer import Routing
from baton.router.policies.cost import Cost

IDLE_S, LIMIT_S, TURN_S, SAID_S = 10.0, 240.0, 0.002, 0.3
NUM_DECISIONS, NUM_TOKENS, NUM_WORDS = 200, 4096, 1000

Figures = dict[str, float]
Phase = Callable[[Sequence[ReplicaInfo]], Awaitable[Figures]]


class MeasuredGateway:
    def __init__(self) -> None:
        self.dispatcher = ReplicaDispatcher(Routing(Cost()), max_waiting=9, no_replica_grace_s=60.0)
        self.fleet = self.dispatcher.fleet

    async def start(self, infos: Sequence[ReplicaInfo]) -> Figures:
        memory, began, thread_s = pss(), time.monotonic(), time.thread_time()
        async with stalls("start: ") as found:
            await self.fleet.apply(snapshot(*infos))
            while not self.fleet.warm_up.is_over:
                await asyncio.sleep(TURN_S)
            found["start: until requests are placed, s"] = time.monotonic() - began
            found["start: event loop CPU until then, s"] = time.thread_time() - thread_s
            num_known = self._num_blocks
            await self._until(lambda: self._num_connected, infos)
            found["start: connected, s"] = time.monotonic() - began
            await self._until(lambda: self._num_synced, infos)
            found["start: all cache snapshots received, s"] = time.monotonic() - began
        found["blocks known by then, %"] = 100 * num_known / max(self._num_blocks, 1)
        found["blocks known, million"] = self._num_blocks / 1e6
        found["memory growth, MB (PSS)"] = (pss() - memory) / 1e6
        found["memory, MB (PSS)"] = pss() / 1e6
        return found

    async def idle(self, infos: Sequence[ReplicaInfo]) -> Figures:
        del infos
        cpu_s, at, thread_s = time.process_time(), time.monotonic(), time.thread_time()
        await asyncio.sleep(IDLE_S)
        seconds = time.monotonic() - at
        found = {
            "idle: CPU, % of a core": 100 * (time.process_time() - cpu_s) / seconds,
            "idle: event loop CPU, % of a core": 100 * (time.thread_time() - thread_s) / seconds,
        }
        observe = ReplicaLink._receive_capacity
        with patch.object(
            ReplicaLink, observe.__name__, autospec=True, side_effect=observe
        ) as heard:
            await asyncio.sleep(IDLE_S)
        return found | {"idle: capacity reports a second": heard.call_count / IDLE_S}

    async def decide(self, infos: Sequence[ReplicaInfo]) -> Figures:
        del infos
        took = [await self._decision_ms() for _ in range(NUM_DECISIONS)]
        return {
            "routing decision, CPU ms": median(took),
            "routing decision, CPU ms p99": quantiles(took, n=100)[-1],
        }

    async def vanish(self, infos: Sequence[ReplicaInfo]) -> Figures:
        """The phase after all replicas but `infos` were killed."""
        async with stalls("300 replicas killed: ") as found:
            found["300 replicas killed: all detected, s"] = await self._until(
                lambda: self._num_lost(len(infos)), infos
            )
        async with stalls("300 replicas leave: ") as left:
            began = time.monotonic()
            await self.fleet.apply(snapshot(*infos))
            left["300 replicas leave: membership applied, s"] = time.monotonic() - began
        return found | left

    async def restarted(self, infos: Sequence[ReplicaInfo]) -> Figures:
        """The phase after all replicas were restarted."""
        async with stalls("all replicas restart: ") as found:
            found["all replicas restart: reconnected, s"] = await self._until(
                lambda: self._num_connected, infos
            )
            await self._until(lambda: self._num_synced, infos)
        return found

    async def words(self, infos: Sequence[ReplicaInfo]) -> Figures:
        """The cost of one message of a replica, including what follows from it. The replicas are
        paused, since their own messages would be counted as well."""
        del infos
        await asyncio.sleep(SAID_S)
        links = list(self.fleet.links.decode.values())
        found = {"capacity report, CPU us": await self._word_us(links, 64)}
        await self._word_us(links, 0)  # no replica accepts requests any more
        asked = Generation(
            request_id=new_request_id(), prompt=(1,) * 64, sampling=SamplingParams(max_tokens=8)
        )
        waiting = asyncio.create_task(self.dispatcher.start(asked))
        while not self.dispatcher.num_waiting:
            await asyncio.sleep(0)
        found["capacity report while a request waits, CPU us"] = await self._word_us(links, 0)
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
        return found

    @property
    def _num_connected(self) -> int:
        return len(self.fleet.connected) + len(self.fleet.lending)

    @property
    def _num_synced(self) -> int:
        return sum(watch.is_synced for watch in self.fleet.links.watches.values())

    @property
    def _num_blocks(self) -> int:
        return sum(self.fleet.index.num_blocks(epoch) for epoch in self.fleet.links.watches)

    def _num_lost(self, num_left: int) -> int:
        return 2 * num_left - self._num_connected

    async def _until(self, number: Callable[[], int], enough: Sequence[object]) -> float:
        began = time.monotonic()
        while number() < len(enough):
            if time.monotonic() - began > LIMIT_S:
                raise TimeoutError(f"{number()} of {len(enough)}")
            await asyncio.sleep(0.02)
        return time.monotonic() - began

    async def _word_us(self, links: Sequence[DecodeLink], max_open: int) -> float:
        words = [
            pb.DecodeFrame(
                capacity=capacity_to_proto(
                    Capacity(max_open=max_open, num_running=number % 7, num_free_blocks=number)
                )
            )
            for number in range(NUM_WORDS)
        ]
        began = time.thread_time()
        for number, word in enumerate(words):
            links[number % len(links)]._receive_frame(word)
            await asyncio.sleep(0)
        return 1e6 * (time.thread_time() - began) / NUM_WORDS

    async def _decision_ms(self) -> float:
        prompt = tuple(random.randrange(150_000) for _ in range(NUM_TOKENS))
        generation = Generation(
            request_id=new_request_id(), prompt=prompt, sampling=SamplingParams(max_tokens=8)
        )
        began = time.thread_time()
        await self.dispatcher.estimate(generation)
        return 1e3 * (time.thread_time() - began)


@asynccontextmanager
async def stalls(prefix: str) -> AsyncIterator[Figures]:
    found: Figures = {}
    worst, worst_cpu, cpu_s = 0.0, 0.0, time.process_time()

    async def watch() -> None:
        nonlocal worst, worst_cpu
        while True:
            at, cpu = time.monotonic(), time.thread_time()
            await asyncio.sleep(TURN_S)
            worst = max(worst, time.monotonic() - at - TURN_S)
            worst_cpu = max(worst_cpu, time.thread_time() - cpu)

    watching = asyncio.create_task(watch())
    try:
        await asyncio.sleep(0)
        yield found
    finally:
        await asyncio.sleep(2 * TURN_S)
        watching.cancel()
    found[f"{prefix}CPU, s"] = time.process_time() - cpu_s
    found[f"{prefix}longest stall, ms"] = 1e3 * worst
    found[f"{prefix}longest stall, CPU ms"] = 1e3 * worst_cpu


def pss() -> int:
    """Proportional set size in bytes; Linux only."""
    rollup = Path("/proc/self/smaps_rollup").read_text()
    found = re.search(r"^Pss:\s+(\d+) kB", rollup, re.MULTILINE)
    assert found is not None
    return 1024 * int(found[1])


async def serve() -> None:
    """Serve phases until there are no more."""
    measured = MeasuredGateway()
    freeze_present_objects()  # as `platform/cluster/gateway_actor.py` does
    warm_up = measured.fleet.warm_up
    sparing = asyncio.create_task(freeze_startup_objects(warm_up.until_begun, warm_up.until_over))
    phases: dict[str, Phase] = {
        "start": measured.start,
        "idle": measured.idle,
        "decide": measured.decide,
        "words": measured.words,
        "vanish": measured.vanish,
        "restarted": measured.restarted,
    }
    with suppress(EOFError):
        while True:
            name, infos = await asyncio.to_thread(pickle.load, sys.stdin.buffer)
            found = await phases[name](infos)
            pickle.dump(found, sys.stdout.buffer)
            sys.stdout.buffer.flush()
    sparing.cancel()


if __name__ == "__main__":
    asyncio.run(serve())
