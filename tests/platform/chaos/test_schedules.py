"""Seeded schedules of faults and crashes on a live fleet of echo engines, whose answers show any
wrong byte of KV. BATON_CHAOS_SCHEDULES says how many; the first of them is BATON_CHAOS_FIRST."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from random import Random

import pytest
from tests.in_process_fleet import VOCAB_SIZE, Fleet, echo_engine, running_fleet

from baton.core.chaos import POINTS, ChaosRule, Fault
from baton.core.ids import ReplicaId
from baton.core.replicas import Role
from baton.core.sampling import SamplingParams
from baton.engine.engine import Engine
from baton.engine.passes.echo import echo_output

NUM_SCHEDULES = int(os.environ.get("BATON_CHAOS_SCHEDULES", "200"))
FIRST = int(os.environ.get("BATON_CHAOS_FIRST", "0"))
IN_ONE_FLEET = 10
TRANSPORTS = ("grpc", "shm", "auto", "tcp")
FLEETS = [
    pytest.param(first, marks=[pytest.mark.wide] if number >= 2 else [])
    for number, first in enumerate(range(FIRST, FIRST + NUM_SCHEDULES, IN_ONE_FLEET))
]
"""The first over the network and the first over shared memory are part of every run."""
NUM_REQUESTS = 6
NUM_TOKENS = 24
STRIKING = [
    (point, fault)
    for point, faults in POINTS.items()
    if point.startswith(("transfer.", "pool.", "kv_events"))
    for fault in sorted(faults - {Fault.KILL})
]


def draw_rules(random: Random) -> list[ChaosRule]:
    picked = random.sample(STRIKING, random.randint(1, 5))
    return [
        ChaosRule(at=point, fault=fault, rate=random.choice((0.02, 0.1, 0.4)), delay_s=0.01)
        for point, fault in picked
    ]


def draw_prompt(random: Random) -> list[int]:
    shared = list(range(3, 3 + random.choice((0, 10, 40))))
    return shared + [random.randrange(3, 250) for _ in range(random.randint(1, 60))]


def small_engine(role: Role) -> Engine:
    """Room for about three requests, so that pools run full too."""
    return echo_engine(role, num_blocks=96, prefill_chunk=16)


def set_rules(fleet: Fleet, rules: Sequence[ChaosRule], seed: int) -> None:
    for replica in fleet.replicas.values():
        assert replica.chaos is not None
        replica.chaos.set(rules, seed)


async def run_schedule(fleet: Fleet, seed: int) -> int:
    """How many faults there were."""
    random = Random(f"schedule/{seed}")
    rules = draw_rules(random)
    set_rules(fleet, rules, seed)
    crashing = random.choice((None, None, *fleet.replicas))
    crash_at = random.randint(1, NUM_TOKENS)

    async def crash_once(num_tokens: int) -> None:
        nonlocal crashing
        if crashing is not None and num_tokens >= crash_at:
            victim, crashing = crashing, None
            await replace(fleet, victim, rules, seed)

    sampling = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    prompts = [draw_prompt(random) for _ in range(NUM_REQUESTS)]

    answers = await asyncio.gather(
        *(fleet.ask(prompt, sampling, on_token=crash_once) for prompt in prompts)
    )

    set_rules(fleet, (), seed)
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.tokens == echo_output(prompt, NUM_TOKENS, VOCAB_SIZE), (rules, answer.receipt)
    await fleet.assert_nothing_is_held(timeout_s=30.0)
    return sum(r.chaos.injected.total() for r in fleet.replicas.values() if r.chaos is not None)


async def replace(fleet: Fleet, victim: ReplicaId, rules: Sequence[ChaosRule], seed: int) -> None:
    role = fleet.replicas[victim].info.role
    await fleet.crash(victim)
    await fleet.add(role)
    set_rules(fleet, rules, seed)


@pytest.mark.parametrize("first", FLEETS)
async def test_no_schedule_of_faults_changes_an_answer_or_leaves_anything_held(first: int) -> None:
    changes = {
        "chaos": {"enabled": True},
        "transfer.transport": TRANSPORTS[first // IN_ONE_FLEET % len(TRANSPORTS)],
    }
    # On a busy machine connections break and take their time: nothing here is about how long.
    async with running_fleet(
        prefill=2, decode=2, make_engine=small_engine, changes=changes, no_replica_grace_s=60.0
    ) as it:
        num_faults = 0
        for seed in range(first, first + IN_ONE_FLEET):
            async with asyncio.timeout(120):
                num_faults += await run_schedule(it, seed)
        assert num_faults > 0
