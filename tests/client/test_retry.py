"""When a call is repeated, and how long is waited before."""

from __future__ import annotations

import grpc
import pytest

from baton.client.errors import (
    BatonClientError,
    DeadlineExceeded,
    InvalidRequest,
    Overloaded,
    Unavailable,
)
from baton.client.retry import Attempts, RetryPolicy

POLICY = RetryPolicy(max_attempts=10**4, first_delay_s=1, max_delay_s=5, growth=2.0)


def unavailable() -> Unavailable:
    return Unavailable("away", grpc.StatusCode.UNAVAILABLE)


def overloaded(retry_after_s: float | None) -> Overloaded:
    error = Overloaded("full", grpc.StatusCode.RESOURCE_EXHAUSTED)
    error.retry_after_s = retry_after_s
    return error


@pytest.mark.parametrize(("num_failed", "ceiling_s"), [(1, 1), (2, 2), (4, 5), (5, 5), (9999, 5)])
def test_waits_grow_up_to_a_limit(num_failed: int, ceiling_s: float) -> None:
    delays = [POLICY.delay_s(unavailable(), num_failed) for _ in range(50)]

    assert all(delay is not None and ceiling_s / 2 <= delay <= ceiling_s for delay in delays)
    assert len(set(delays)) > 1


def test_the_last_attempt_is_the_last() -> None:
    assert POLICY.delay_s(unavailable(), 10**4) is None


def test_the_servers_advice_is_the_least_that_is_waited() -> None:
    assert POLICY.delay_s(overloaded(30), 1) == 30


@pytest.mark.parametrize(
    "error", [overloaded(None), InvalidRequest("bad", grpc.StatusCode.INVALID_ARGUMENT)]
)
def test_failures_that_will_not_pass_are_not_repeated(error: BatonClientError) -> None:
    assert POLICY.delay_s(error, 1) is None


def test_a_policy_without_attempts_is_refused() -> None:
    with pytest.raises(ValueError, match="max_attempts"):
        RetryPolicy(max_attempts=0)


def attempts(timeout_s: float, now: list[float]) -> Attempts:
    patient = RetryPolicy(max_attempts=3, first_delay_s=1, max_delay_s=1)
    return Attempts(patient, timeout_s, clock=lambda: now[0])


def test_a_wait_that_would_outlast_the_deadline_is_not_begun() -> None:
    now = [0.0]
    call = attempts(10, now)
    assert call.delay_s_after(unavailable()) <= 1
    now[0] = 9.9

    with pytest.raises(Unavailable):
        call.delay_s_after(unavailable())

    assert call.time_left_s == pytest.approx(0.1)


def test_a_failure_after_the_deadline_is_the_deadlines() -> None:
    now = [0.0]
    call = attempts(10, now)
    now[0] = 11

    with pytest.raises(DeadlineExceeded) as caught:
        call.delay_s_after(unavailable())

    assert isinstance(caught.value.__cause__, Unavailable)
    assert call.time_left_s == 0


def test_progress_begins_the_count_again() -> None:
    call = attempts(100, [0.0])
    for _ in range(5):
        call.delay_s_after(unavailable())
        call.delay_s_after(unavailable())
        call.made_progress()
