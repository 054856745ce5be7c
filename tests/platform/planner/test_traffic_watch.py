"""What gateways tell of their traffic, added up."""

from __future__ import annotations

from dataclasses import replace

from baton.core.clock import ManualClock
from baton.core.ids import Epoch
from baton.core.replicas import Role
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
        num_for_decode=2, waiting_tokens=200, oldest_wait_s=1.5,
    )  # fmt: skip
    later = replace(first, age_s=2.0, num_arrived=5, num_ended=1, output_tokens=9)
    for report in (first, later, later, first):
        watch.add_report(ONE, report)
    watch.add_report(OTHER, TrafficReport(age_s=900.0, num_arrived=1000, num_waiting=1))

    seen = observe(watch, clock)

    assert (seen.num_arrived, seen.num_ended, seen.output_tokens) == (5, 1, 9)
    assert seen.prompt_tokens == 5 * 50  # as those that were placed
    assert seen.cached_tokens == 5 * 30
    assert (seen.num_waiting, seen.num_for_decode) == (3, 2)
    assert (seen.oldest_wait_s, seen.is_complete) == (1.5, True)
    assert observe(watch, clock).num_arrived == 0


def test_a_gateway_that_fell_silent_waits_for_nothing_and_the_freshest_word_of_speeds_counts() -> (
    None
):
    clock = ManualClock()
    watch = TrafficWatch(clock)
    replica, slow, fast = Epoch("r"), StepTimes(token_s=2.0), StepTimes(token_s=1.0)
    speeds = {replica: ReplicaSpeed(slow, 5.0)}
    watch.add_report(ONE, TrafficReport(age_s=1.0, num_waiting=7, speeds=speeds))
    clock.advance(3.0)
    watch.add_report(OTHER, TrafficReport(age_s=1.0, speeds={replica: ReplicaSpeed(fast, 1.0)}))
    assert watch.speeds()[replica].times is fast

    seen = observe(watch, clock)

    assert (seen.num_waiting, seen.is_complete) == (0, False)


def test_reports_that_come_seldom_are_counted_and_none_of_them_twice() -> None:
    """Each four seconds, which is more than a gateway is believed to be there without a word."""
    clock = ManualClock()
    watch = TrafficWatch(clock)
    arrived = 0
    for second in range(1, 61):
        clock.advance(1.0)
        if second % 4 == 0:
            watch.add_report(ONE, TrafficReport(age_s=100.0 + second, num_arrived=10 * second))
        if second % 5 == 0:
            seen = watch.observe(POOLS, num_gateways=1)
            assert seen.is_complete
            assert (seen.num_arrived > 0) is (second > 5)
            arrived += seen.num_arrived

    assert arrived == 10 * (60 - 4)


def test_what_came_during_a_silence_is_spread_over_it_and_not_lost() -> None:
    clock = ManualClock()
    watch = TrafficWatch(clock)

    def report(num_arrived: int) -> TrafficReport:
        told = {"num_arrived": num_arrived, "num_placed": num_arrived}
        return TrafficReport(age_s=100.0 + num_arrived, computed_tokens=50 * num_arrived, **told)  # type: ignore[arg-type]

    watch.add_report(ONE, report(0))
    silent = [observe(watch, clock, 5.0) for _ in range(4)]
    watch.add_report(ONE, report(200))
    back = observe(watch, clock, 2.5)

    assert [one.num_arrived for one in silent] == [0, 0, 0, 0]
    assert not silent[-1].is_complete
    assert (back.num_arrived, back.prompt_tokens) == (25, 25 * 50)  # 200 came in 20 s


def test_an_observation_begins_when_the_first_gateway_is_heard() -> None:
    clock = ManualClock()
    watch = TrafficWatch(clock)
    clock.advance(20.0)
    watch.add_report(ONE, TrafficReport(age_s=900.0, num_arrived=1000))
    clock.advance(4.0)
    watch.add_report(ONE, TrafficReport(age_s=904.0, num_arrived=1008))

    seen = observe(watch, clock, 1.0)

    assert (seen.num_arrived, seen.lasted_s) == (8, 5.0)
