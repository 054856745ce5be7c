"""Pools that change under load: nothing is lost, nothing is kept, and what they cost is counted."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from random import Random

import pytest

from baton.core.replicas import Role
from baton.core.step_times import StepTimes
from baton.platform.planner.config import PlannerConfig
from baton.platform.planner.plan import Decision
from baton.platform.simulator.fleet.planned import play_planned
from baton.platform.simulator.fleet.play import Fleet
from baton.platform.simulator.fleet.setup import Device, FleetSetup, Links
from baton.platform.traces.trace import Trace, TraceRequest

TIMES = StepTimes(constant_s=0.05, token_s=0.002, request_s=0.0)
DEVICE = Device(
    step_times=TIMES, num_blocks=400, block_size=10, token_bytes=10.0, max_running=8, max_open=8
)
SETUP = FleetSetup(
    num_prefill=2,
    num_decode=2,
    num_gateways=2,
    prefill=DEVICE,
    decode=DEVICE,
    links=Links(latency_s=0.001, bytes_per_s=1e6),
    is_noisy=False,
    cold_start_s=3.0,
    flip_s=1.0,
)
RULES = PlannerConfig(
    ttft_s=2.0, itl_s=0.2, cold_start_s=3.0, period_s=2.0, window_s=20.0, steady_s=20.0
)


def load(rates: list[float], lasts_s: float) -> Trace:
    """Each rate for so long."""
    random, requests = Random(5), []
    for number, rate in enumerate(rates):
        at_s = number * lasts_s
        while rate and (at_s := at_s + random.expovariate(rate)) < (number + 1) * lasts_s:
            requests.append(
                TraceRequest(
                    arrival_s=at_s, input_length=random.randrange(50, 150), output_length=8
                )
            )
    return Trace(name="changing", requests=tuple(requests), block_size=None)


def test_replicas_that_leave_or_turn_under_load_lose_no_request_and_keep_no_block() -> None:
    played = load([6.0], 10.0)
    fleet = Fleet(played, SETUP, "cost", seed=0)
    turns = (
        Decision(at_s=2.0, prefill=1, decode=3, flips=1),
        Decision(at_s=4.0, prefill=3, decode=1),
        Decision(at_s=7.0, prefill=1, decode=3, flips=1),
    )
    for decision in turns:
        fleet.later(decision.at_s, partial(fleet.pools.follow, decision))

    outcome = fleet.play()

    assert len(outcome.served) == len(played.requests) and not outcome.rejected
    assert outcome.num_output_tokens == 8 * len(played.requests)
    assert [engine.pool.num_in_use for engine in fleet.engines] == [0] * len(fleet.engines)
    assert len(fleet.engines) > 4 and fleet.pools.num_flipped == 2
    assert fleet.pools.count(Role.DECODE).serving == 3


def test_a_replica_costs_from_its_start_until_it_is_gone() -> None:
    """One decode replica of two is gone after a second or two; a third costs while it starts."""
    fleet = Fleet(load([1.0], 10.0), SETUP, "cost", seed=0)
    fleet.later(0.0, lambda: fleet.pools.follow(Decision(at_s=0.0, prefill=3, decode=1)))

    fleet.play()

    ended_s = fleet.now_s
    assert fleet.pools.replica_s(Role.PREFILL) == pytest.approx(3 * ended_s)
    spent_s = fleet.pools.replica_s(Role.DECODE) - ended_s
    assert 1.0 <= spent_s <= 4.0


def test_the_planner_keeps_a_changing_load_for_less_than_pools_that_are_always_large() -> None:
    setup = replace(SETUP, num_prefill=1, num_decode=1, num_gateways=1, rules=RULES)

    planned, equal, twice = play_planned(load([0.5, 3.0, 0.5], 30.0), setup, "cost", seed=0)

    assert planned.num_requests == equal.num_requests == twice.num_requests
    assert planned.reversals <= 2 and planned.rejected == 0
    assert planned.replica_s < 0.75 * twice.replica_s
    assert planned.kept > 0.8
    assert max(decision.prefill for decision in planned.decisions) >= 2


def test_a_fleet_that_went_to_zero_comes_back_for_who_waits() -> None:
    rules = PlannerConfig(idle_s=10.0, cold_start_s=3.0, period_s=2.0, window_s=20.0, steady_s=20.0)
    setup = replace(SETUP, num_prefill=1, num_decode=1, rules=rules)
    fleet = Fleet(load([1.0, 0.0, 0.0, 1.0], 10.0), setup, "cost", seed=0)

    outcome = fleet.play()

    assert fleet.planner is not None
    assert min(decision.decode for decision in fleet.planner.decisions) == 0
    assert not outcome.rejected and len(outcome.served) > 10
    assert 3.0 < max(one.ttft_s for one in outcome.served) < 8.0
