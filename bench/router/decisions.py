"""The CPU time of a routing decision, from a prompt's tokens to its placement.

    block hashes -> index lookup -> view -> placement -> booking, first token, end

    as many decode as prefill replicas; half of the prefill replicas have a part of the prompt
    cached, and each decode replica runs 16 requests, whose prompts are expected there
    idle     every prompt finds an idle prefill replica
    loaded   each prefill replica computes a prompt, and four wait for each: the next one waits, too
    served   a replica becomes idle, and one of all waiting prompts is chosen from the whole queue

Times are CPU time of this thread, the median of many.

    python -m bench.router.decisions [--policy NAME]
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count
from statistics import median

import numpy as np

from baton.core.block_hash import BlockNames
from baton.core.ids import Epoch, ReplicaId, RequestId
from baton.core.kv_events import KvChange, KvEvent, KvEvents
from baton.core.kv_layout import KvLayout
from baton.core.replicas import Capacity, ReplicaInfo, Role
from baton.core.step_times import StepTimes
from baton.router.cache.expected_blocks import Expected
from baton.router.cache.kv_index import KvIndex
from baton.router.cache.matches import Matches
from baton.router.cache.prompt_names import PromptNames
from baton.router.cache.pulling import PullRates
from baton.router.defaults import DEFAULT_POLICY
from baton.router.placement import Placement, PlacementRequest
from baton.router.placer import LINE_PER_REPLICA, Placer, Routing
from baton.router.policies.by_name import policy
from baton.router.prompt import Prompt
from baton.router.replicas.candidate import Candidate
from baton.router.replicas.pool import KnownReplica, Pool
from baton.router.replicas.view import View, look
from baton.router.speeds.speed import MeasuredSpeed
from bench.harness.command_line import benchmark_parser
from bench.harness.report import surroundings, table
from bench.router.index import cpu_s

DRAW = random.Random(1)
LAYOUT = KvLayout(
    model_fingerprint=b"model",
    dtype="bfloat16",
    num_layers=32,
    num_kv_heads=8,
    head_dim=128,
    block_size=16,
)
TIMES = StepTimes(constant_s=0.004, token_s=2e-5, pair_s=2e-10, num_prompt_steps=99)
NUM_PROMPTS = 8
"""Prompts without a common prefix."""
NUM_ASKED = 128
"""Requests; each is one of these prompts with another last block."""
NUM_DECODING = 16


class Fleet:
    """A gateway's view of its replicas, without connections."""

    def __init__(self, num_replicas: int, num_tokens: int, policy_name: str) -> None:
        self.num_tokens = num_tokens
        self.prompts = [
            tuple(DRAW.randrange(150_000) for _ in range(num_tokens)) for _ in range(NUM_PROMPTS)
        ]
        self._asked = [
            (*self.prompts[number % NUM_PROMPTS][:-16], *[number] * 16)
            for number in range(NUM_ASKED)
        ]
        self._names = [PromptNames(tokens) for tokens in self._asked]
        self.pools = {role: Pool() for role in Role}
        self.index = KvIndex()
        matches = Matches(self.index, lambda epoch: LAYOUT)
        self.rates = PullRates()
        self.placer = Placer(Routing(policy(policy_name)), matches.num_tokens, matches.lookup)
        self.now = 1000.0
        self._numbers = count()
        self._expected: dict[int, list[Expected]] = {}
        """Expected blocks by the prompt's number."""
        for role in (Role.DECODE, Role.PREFILL):
            for number in range(num_replicas):
                self._join(role, number)

    def _join(self, role: Role, number: int) -> None:
        name = f"{role.value}-{number}"
        info = ReplicaInfo(
            replica_id=ReplicaId(name),
            epoch=Epoch(name),
            role=role,
            address="127.0.0.1:1",
            layout=LAYOUT,
            num_blocks=10_000,
            max_model_len=1 << 18,
            max_open=1 << 16,
            max_queued_tokens=1 << 20,
            max_chunk=2048,
        )
        speed = MeasuredSpeed(times=TIMES, max_chunk=2048)
        replica = KnownReplica(info, Candidate(name, speed, epoch=info.epoch))
        replica.is_connected, replica.capacity = True, Capacity(max_open=1 << 16)
        self.pools[role].join(replica)
        stored = PromptNames(self.prompts[number % NUM_PROMPTS]).under(LAYOUT).packed
        held = stored[: 16 * DRAW.randrange(len(stored) // 16)] if number % 2 else b""
        if role is Role.PREFILL:
            events = (KvEvent(KvChange.STORED, held + DRAW.randbytes(16 * 1000)),)
            self.index.apply(
                info.epoch, KvEvents(first_sequence=1, events=events, is_snapshot=True)
            )
        else:
            for asked in DRAW.sample(self._names, NUM_DECODING):
                self.index.expect(asked.under(LAYOUT), info.epoch)

    def view(self, names: PromptNames) -> View:
        pools = self.pools
        return look(names, self.index, pools[Role.DECODE], pools[Role.PREFILL], self.rates)

    def place(self) -> Placement | Prompt | None:
        """Route one more prompt, from its tokens on; booked if it is sent."""
        number = next(self._numbers)
        names = PromptNames(self._asked[number % len(self._asked)])
        request = PlacementRequest(request_id=RequestId(f"r{number}"), num_tokens=self.num_tokens)
        placed = self.placer.place(request, names, self.view(names), self.now)
        if isinstance(placed, Placement):
            self._book(placed)
        return placed

    def place_and_finish(self) -> None:
        """Route a prompt that is sent at once, and end it: the usual case."""
        placed = self.place()
        assert isinstance(placed, Placement)
        self._finish(placed)

    def place_and_leave(self) -> None:
        """Route a prompt while all replicas are busy: it waits, and is cancelled."""
        placed = self.place()
        assert isinstance(placed, Prompt)
        self.placer.leave(placed)

    def fill(self) -> None:
        """Add prompts until each replica computes one and the queue is full."""
        for _ in range((LINE_PER_REPLICA + 1) * len(self.pools[Role.PREFILL])):
            self.place()

    def serve(self) -> None:
        """End a prompt, and send the next one from the queue; all other replicas are busy."""
        self.now += 0.01
        pool = self.pools[Role.PREFILL].candidates
        busy = np.flatnonzero(pool.num_open)
        candidate = pool[int(busy[DRAW.randrange(len(busy))])]
        prompt = next(iter(candidate.open.values())).prompt
        candidate.finished(prompt, self.now)
        self._release(prompt)
        for _, placement in self.placer.served(self.view, self.now):
            self._book(placement)

    def _book(self, placement: Placement) -> None:
        replica = self.pools[Role.PREFILL].replica(placement.prefill[0].epoch)
        assert replica is not None
        num_held = placement.prompt.num_tokens - placement.num_prefill_tokens
        replica.candidate.book(placement.prompt, num_held, self.now)
        names = BlockNames.of(placement.prompt.names)
        self._expected[placement.prompt.number] = [
            self.index.expect(names, epoch)
            for epoch in (placement.decode.epoch, placement.prefill[0].epoch)
        ]

    def _finish(self, placement: Placement) -> None:
        replica = self.pools[Role.PREFILL].replica(placement.prefill[0].epoch)
        assert replica is not None
        self.now += 0.01
        replica.candidate.finished(placement.prompt, self.now)
        self._release(placement.prompt)

    def _release(self, prompt: Prompt) -> None:
        for expected in self._expected.pop(prompt.number):
            self.index.release(expected)


def report(policy_name: str) -> str:
    return table(
        ("", "target, µs", "CPU time, µs"),
        [
            row
            for size in ((64, 4096, 200), (1000, 131_072, 2000))
            for row in rows(size, policy_name)
        ],
    )


def rows(size: tuple[int, int, int], policy_name: str) -> Iterator[tuple[str, int | str, float]]:
    num_replicas, num_tokens, aim_us = size
    fleet = Fleet(num_replicas, num_tokens, policy_name)
    what = f"{num_replicas:,} prefill replicas, {num_tokens:,} tokens"
    naming_us = median_us(lambda: PromptNames(fleet.prompts[0]).under(LAYOUT))
    yield f"naming alone, {num_tokens:,} tokens", "", naming_us
    yield f"idle: {what}, naming included", aim_us, median_us(fleet.place_and_finish)
    fleet.fill()
    yield f"loaded: {what}, naming included", aim_us, median_us(fleet.place_and_leave)
    yield f"served: {what}", aim_us, median_us(fleet.serve)


def median_us(function, times: int = 100) -> float:  # type: ignore[no-untyped-def]
    return median(cpu_s(function) for _ in range(times)) * 1e6


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--policy", default=DEFAULT_POLICY)
    arguments = parser.parse_args()
    print(surroundings(), flush=True)
    print(report(arguments.policy))


if __name__ == "__main__":
    main()
