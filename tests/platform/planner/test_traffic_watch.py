"""What gateways tell of their traffic, added up."""

from __future__ import annotations

from dataclasses import replace

from baton.core.clock import ManualClock
from baton.core.ids import Epoch
from baton.core.messages import Role
from baton.core.step_times import StepTimes
from baton.gateway.fleet.traffic import ReplicaSpeed, TrafficReport
from baton.platform.planner.observation import Observation, PoolCount
from baton.platform.planner.traffic_watch import TrafficWatch

POOLS = dict.fromkeys(Role, PoolCount(1))
ONE, OTHER = Epoch("one"), Epoch("other")


def observe(watch: TrafficWatch, clock: ManualClock, seconds: float = 2.0) -> Observation:
    clock.advance(seconds)
    return watch.observe(POOLS, num_gateways=2)


def test_gateways_are_added_up_and_a_report_that_comes_twice_or_late_counts_once() -> None:
    clock = ManualClock()
    watch = TrafficWatch(clock)
    first = TrafficReport(
        age_s=1.0, num_arrived=4, arrived_tokens=400, num_placed=2, computed_tokens=100,
        squared_computed_tokens=5000, cached_tokens=60, num_open=2, num_waiting=2,
        waiting_tokens=200, oldest_wait_s=1.5,
    )  # fmt: skip
    later = replace(first, age_s=2.0, num_arrived=5, num_ended=1, output_tokens=9)
    for report in (first, later, later, first):
        watch.hear(ONE, report)
    watch.hear(OTHER, TrafficReport(age_s=900.0, num_arrived=1000, num_waiting=1))

    seen = observe(watch, clock)

    assert (seen.num_arrived, seen.num_ended, seen.output_tokens) == (5, 1, 9)
    assert seen.prompt_tokens == 5 * 50  # as those that were placed
    assert seen.cached_tokens == 5 * 30
    assert (seen.num_waiting, seen.oldest_wait_s, seen.is_complete) == (3, 1.5, True)
    assert observe(watch, clock).num_arrived == 0


def test_a_gateway_that_fell_silent_waits_for_nothing_and_the_freshest_word_of_speeds_counts() -> (
    None
):
    clock = ManualClock()
    watch = TrafficWatch(clock)
    replica, slow, fast = Epoch("r"), StepTimes(token_s=2.0), StepTimes(token_s=1.0)
    speeds = {replica: ReplicaSpeed(slow, 5.0)}
    watch.hear(ONE, TrafficReport(age_s=1.0, num_waiting=7, speeds=speeds))
    clock.advance(3.0)
    watch.hear(OTHER, TrafficReport(age_s=1.0, speeds={replica: ReplicaSpeed(fast, 1.0)}))
    assert watch.speeds()[replica].times is fast

    seen = observe(watch, clock)

    assert (seen.num_waiting, seen.is_complete) == (0, False)
