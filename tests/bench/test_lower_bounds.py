"""The bound of `bench.router.lower_bounds`: no policy is below it, and small cases reach it."""

from __future__ import annotations

import math
import random
from itertools import combinations

import numpy as np
import pytest
from bench.router.lower_bounds import (
    bound_of,
    least_mean_s,
    least_percentile_s,
    min_num_late,
)

from baton.platform.simulator.prefill_pool import PrefillPool
from baton.platform.simulator.setup import Setup
from baton.platform.traces.trace import Trace, TraceRequest
from baton.router.policies.by_name import policy

Job = tuple[float, float]
"""When it comes, and what it takes."""


def are_in_time(jobs: tuple[Job, ...], num_replicas: int, within_s: float) -> bool:
    """One after the other, on one server that is as fast as all replicas."""
    end_s = 0.0
    for at_s, takes_s in jobs:
        end_s = max(end_s, at_s) + takes_s / num_replicas
        if takes_s > within_s or end_s > at_s + within_s:
            return False
    return True


def test_no_choice_of_whom_to_leave_out_leaves_fewer_late() -> None:
    """Every choice is tried."""
    random_ = random.Random(1)
    found = set()
    for _ in range(300):
        num, num_replicas = random_.randint(1, 8), random_.randint(1, 3)
        within_s = random_.uniform(0.5, 4.0)
        arrivals = sorted(random_.uniform(0.0, 4.0) for _ in range(num))
        jobs = tuple((at_s, random_.uniform(0.1, 5.0)) for at_s in arrivals)
        fewest = next(
            num_late
            for num_late in range(num + 1)
            if any(
                are_in_time(kept, num_replicas, within_s)
                for kept in combinations(jobs, num - num_late)
            )
        )

        at_s, takes_s = np.array(jobs).T
        assert min_num_late(at_s, takes_s, num_replicas, within_s, num) == fewest
        found.add(fewest)
    assert found >= {0, 1, 2, 3, 4}


def test_the_least_mean_is_that_of_the_least_remaining_work_first() -> None:
    """The long one comes first, and is left for both short ones: over at 8, 3 and 2."""
    mean_s = least_mean_s(np.array([0.0, 1.0, 1.0]), np.array([5.0, 2.0, 1.0]))

    assert mean_s == pytest.approx((8.0 + 3.0 + 1.0) / 3.0)


def test_the_percentile_of_a_crowd_is_bounded_by_what_all_but_a_hundredth_take() -> None:
    """Of 101 at one moment on one replica, one may be late: the long one. The others take 100 s."""
    arrived_s, work_s = np.zeros(101), np.array([50.0] + [1.0] * 100)

    assert least_percentile_s(arrived_s, work_s, 1) == pytest.approx(100.0, rel=1e-3)


def conversations(num_sessions: int, *, is_closed: bool) -> Trace:
    """Turns that each go on from the one before, behind one beginning of two blocks, which come
    faster than they can be computed."""
    random_, requests = random.Random(3), []
    for session in range(num_sessions):
        ids = [1, 2]
        at_s = session * 0.5
        for turn in range(random_.randint(1, 5)):
            ids += [1000 * session + 100 * turn + at + 10 for at in range(random_.randint(1, 5))]
            request = TraceRequest(
                input_length=len(ids) * 10 + random_.randrange(10),
                output_length=5,
                hash_ids=tuple(ids),
                arrival_s=None if is_closed else at_s,
                session=f"{session}" if is_closed else None,
                turn=turn,
                gap_s=at_s if is_closed and not turn else 0.2,
            )
            requests.append(request)
            at_s += random_.uniform(0.1, 3.0)
    if not is_closed:
        requests.sort(key=lambda request: request.arrival_s or 0.0)
    return Trace(name="made up", requests=tuple(requests), block_size=10)


@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize("name", ["cost", "least-tokens", "session-sticky"])
def test_no_policy_is_better_than_the_bound(name: str, is_closed: bool) -> None:
    trace = conversations(60, is_closed=is_closed)
    setup = Setup(num_replicas=3, num_blocks=1000, block_size=10, tokens_per_s=25.0)

    figures = PrefillPool(trace, setup, policy(name), seed=0).play().figures(10.0)

    bound = bound_of(trace, setup, seed=0)
    assert bound.mean_s <= figures.mean_s
    assert bound.p99_s <= figures.p99_s
    assert math.isfinite(bound.mean_s) and bound.p99_s > 0.0


def test_one_replica_that_serves_in_order_meets_the_bound_where_all_are_alike() -> None:
    """Equal prompts that come at once: neither order nor choice gains anything."""
    requests = tuple(
        TraceRequest(arrival_s=0.0, input_length=100, output_length=1) for _ in range(101)
    )
    trace = Trace(name="alike", requests=requests, block_size=10)
    setup = Setup(num_replicas=1, num_blocks=100, block_size=10, tokens_per_s=100.0)

    figures = PrefillPool(trace, setup, policy("cost"), seed=0).play().figures(10.0)

    bound = bound_of(trace, setup, seed=0)
    assert bound.mean_s == pytest.approx(figures.mean_s)
    assert bound.p99_s == pytest.approx(figures.p99_s, rel=1e-3)
