"""What clients notice of failing replicas, a missing registry and a killed gateway.

    2 prefill and 2 decode replicas (processes, bench/paced/replica.py), a gateway, prompts of 200
    to 1,000 tokens without cached prefixes, Poisson arrivals at about half of the prefill capacity,
    24 output tokens each. From a quarter of the time to three quarters there is one fault. All
    cases have the same prompts at the same times; each request goes to a random gateway.

A table has for each case the requests that failed, the time to the first token, and the longest
gap between tokens. *Without pings* gateways do not ping replicas (`proto/pulse.py`): a stopped
process is noticed when gRPC's keepalive closes its connections. Passes sleep for a given time, so
the speed of the machine matters little.

    python -m bench.fleet.failures [--seconds 24] [--away-seconds 60] [--only NAME ...]
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from baton.core.ids import Epoch, new_request_id
from baton.core.replicas import HEARTBEAT_S, Membership, Role
from baton.core.sampling import SamplingParams
from baton.engine.passes.echo import echo_output
from baton.gateway.fleet.dispatch import ReplicaDispatcher
from baton.gateway.requests.generations.generation import Generation
from baton.platform.registry.registry import Registry
from baton.proto.channels import Channels
from baton.proto.pulse import PingTiming
from baton.router.placer import Routing
from baton.router.policies.cost import Cost
from bench.harness.command_line import benchmark_parser
from bench.harness.report import percentile, surroundings, table
from bench.paced.replica import PacedReplica, spawn

RATE, NUM_TOKENS = 14.0, 24
PLACES = 840
"""A multiple of every number of gateways."""
PINGS, NO_PINGS = PingTiming(), PingTiming(ask_after_s=1e6)
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)


@dataclass(slots=True)
class Came:
    """The outcome of one request."""

    first_s: float = 0.0
    longest_gap_s: float = 0.0
    """The longest gap between tokens, or before the first."""
    failure: str = ""


@dataclass(slots=True)
class AwayRegistry:
    """A registry that can be away, and comes back empty."""

    registry: Registry = field(default_factory=Registry)
    is_away: bool = False

    async def watch(self, incarnation: Epoch | None, version: int) -> Membership:
        if self.is_away:
            raise ConnectionError("the registry is away")
        return await self.registry.watch(incarnation, version)

    async def hear(self, replicas: Sequence[PacedReplica]) -> None:
        while True:
            for replica in replicas:
                self.registry.heartbeat(replica.info)
            await asyncio.sleep(HEARTBEAT_S)

    def leave(self) -> None:
        self.is_away = True

    def come_back(self) -> None:
        self.registry, self.is_away = Registry(), False


@dataclass(slots=True)
class World:
    prefill: list[PacedReplica]
    decode: list[PacedReplica]
    registry: AwayRegistry
    gateways: list[asyncio.Task[None]] = field(default_factory=list)


Blow = Callable[[World], None]


class Arrival(NamedTuple):
    at_s: float
    """Seconds since the start."""
    prompt: tuple[int, ...]
    place: int
    """Random, below PLACES: chooses the gateway."""


def arrivals(seconds: float, seed: int) -> list[Arrival]:
    draw, at_s = random.Random(seed), 0.0
    found: list[Arrival] = []
    while at_s < seconds:
        prompt = tuple(draw.randrange(256) for _ in range(draw.randint(200, 1000)))
        found.append(Arrival(at_s, prompt, draw.randrange(PLACES)))
        at_s += draw.expovariate(RATE)
    return found


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    begin: Blow = lambda world: None
    end: Blow = lambda world: None
    ping_timing: PingTiming = PINGS
    num_gateways: int = 1


CASES = (
    Case("nothing"),
    Case("prefill stopped", lambda w: w.prefill[0].stop(), lambda w: w.prefill[0].go_on()),
    Case(
        "prefill stopped, without pings",
        lambda w: w.prefill[0].stop(),
        lambda w: w.prefill[0].go_on(),
        NO_PINGS,
    ),
    Case("decode stopped", lambda w: w.decode[0].stop(), lambda w: w.decode[0].go_on()),
    Case(
        "decode stopped, without pings",
        lambda w: w.decode[0].stop(),
        lambda w: w.decode[0].go_on(),
        NO_PINGS,
    ),
    Case(
        "prefill ten times slower",
        lambda w: w.prefill[0].tell("pace 10"),
        lambda w: w.prefill[0].tell("pace 1"),
    ),
    Case(
        "decode ten times slower",
        lambda w: w.decode[0].tell("pace 10"),
        lambda w: w.decode[0].tell("pace 1"),
    ),
    Case(
        "decode lossy (10 % of pieces)",
        lambda w: w.decode[0].tell("lossy 0.1"),
        lambda w: w.decode[0].tell("lossy 0"),
    ),
    Case("registry away", lambda w: w.registry.leave(), lambda w: w.registry.come_back()),
    Case("two gateways", num_gateways=2),
    Case("eight gateways", num_gateways=8),
    Case("one of two gateways killed", lambda w: _kill(w.gateways[1]), num_gateways=2),
)


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=24.0)
    parser.add_argument("--away-seconds", type=float, default=60.0, help="of the registry")
    parser.add_argument("--only", nargs="*", help="cases whose name begins so")
    parser.add_argument("--seed", type=int, default=0, help="of prompts and arrivals")
    args = parser.parse_args()
    print(surroundings(), flush=True)
    rows = []
    for case in CASES:
        if case.name.startswith(tuple(args.only or ("",))):
            seconds = 2 * args.away_seconds if case.name == "registry away" else args.seconds
            rows.append(asyncio.run(measured(case, seconds, args.seed)))
            print(rows[-1], flush=True)
    print(table(HEADER, rows))


HEADER = ("", "requests", "failed", "first token p50, s", "p99", "longest", "longest gap, s")


async def measured(case: Case, seconds: float, seed: int) -> tuple[str | float, ...]:
    due, begin = arrivals(seconds, seed), asyncio.Barrier(case.num_gateways)
    with replicas(case.ping_timing) as world:
        hearing = asyncio.create_task(world.registry.hear(world.prefill + world.decode))
        came: list[list[Came]] = [[] for _ in range(case.num_gateways)]
        for number, each in enumerate(came):
            its = [one for one in due if one.place % case.num_gateways == number]
            asked = load(world.registry, case.ping_timing, its, begin, each)
            world.gateways.append(asyncio.create_task(asked))
        await asyncio.sleep(seconds / 4)
        case.begin(world)
        await asyncio.sleep(seconds / 2)
        case.end(world)
        await asyncio.gather(*world.gateways, return_exceptions=True)
        hearing.cancel()
    heard = [  # a killed gateway reports nothing
        one
        for gateway, each in zip(world.gateways, came, strict=True)
        if not gateway.cancelled()
        for one in each
    ]
    good = [one.first_s for one in heard if not one.failure]
    return (
        case.name,
        str(len(heard)),
        str(sum(bool(one.failure) for one in heard)),
        percentile(good, 50),
        percentile(good, 99),
        max(good),
        max(one.longest_gap_s for one in heard),
    )


@contextmanager
def replicas(ping_timing: PingTiming) -> Iterator[World]:
    roles = [(role, number) for role in (Role.PREFILL, Role.DECODE) for number in (1, 2)]
    processes = [spawn(role, number, ping_timing) for role, number in roles]
    try:
        started = [PacedReplica.of(process) for process in processes]
        yield World(started[:2], started[2:], AwayRegistry())
    finally:
        for process in processes:
            process.kill()
            process.wait()


async def load(
    registry: AwayRegistry,
    ping_timing: PingTiming,
    due: Sequence[Arrival],
    begin: asyncio.Barrier,
    came: list[Came],
) -> None:
    """Runs one gateway and its clients, once all gateways `begin`."""
    dispatcher = ReplicaDispatcher(
        Routing(Cost()),
        max_waiting=10_000,
        no_replica_grace_s=60.0,
        channels=Channels(ping_timing=ping_timing),
    )
    following = asyncio.create_task(dispatcher.run(registry))
    asking: set[asyncio.Task[None]] = set()
    try:
        while len(dispatcher.fleet.connected) < 2 or len(dispatcher.fleet.lending) < 2:
            await asyncio.sleep(0.02)
        await begin.wait()
        began_s = time.monotonic()
        for arrival in due:
            await asyncio.sleep(began_s + arrival.at_s - time.monotonic())
            asking.add(asyncio.create_task(ask(dispatcher, arrival.prompt, came)))
        await asyncio.gather(*asking)
    finally:
        for one in (*asking, following):
            one.cancel()
        await asyncio.gather(*asking, following, return_exceptions=True)


async def ask(dispatcher: ReplicaDispatcher, prompt: tuple[int, ...], came: list[Came]) -> None:
    one, began = Came(), time.monotonic()
    generation = Generation(request_id=new_request_id(), prompt=prompt, sampling=GREEDY)
    tokens: list[int] = []
    last = began
    try:
        running = await dispatcher.start(generation)
        try:
            async for update in running:
                now = time.monotonic()
                one.first_s = one.first_s or now - began
                one.longest_gap_s = max(one.longest_gap_s, now - last)
                last = now
                tokens += update.tokens
        finally:
            await running.stop(len(tokens))
        if tokens != echo_output(prompt, NUM_TOKENS, 256):
            one.failure = "wrong tokens"
    except Exception as error:
        one.failure = repr(error)
        print(one.failure, flush=True)
    came.append(one)


def _kill(gateway: asyncio.Task[None]) -> None:
    """Break the gateway's streams, as the end of its process would."""
    gateway.cancel()


if __name__ == "__main__":
    main()
