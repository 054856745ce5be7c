"""When a call is repeated, and how long is waited before."""

from __future__ import annotations

import grpc
import pytest

from baton.client.errors import BatonClientError, InvalidRequest, Overloaded, Unavailable
from baton.client.retry import RetryPolicy

POLICY = RetryPolicy(max_attempts=6, first_delay_s=1, max_delay_s=5, growth=2)


def unavailable() -> Unavailable:
    return Unavailable("away", grpc.StatusCode.UNAVAILABLE)


def overloaded(retry_after_s: float | None) -> Overloaded:
    error = Overloaded("full", grpc.StatusCode.RESOURCE_EXHAUSTED)
    error.retry_after_s = retry_after_s
    return error


@pytest.mark.parametrize(("num_failed", "ceiling_s"), [(1, 1), (2, 2), (3, 4), (4, 5), (5, 5)])
def test_waits_grow_up_to_a_limit(num_failed: int, ceiling_s: float) -> None:
    delays = [POLICY.delay_s(unavailable(), num_failed) for _ in range(50)]

    assert all(delay is not None and ceiling_s / 2 <= delay <= ceiling_s for delay in delays)
    assert len(set(delays)) > 1


def test_the_last_attempt_is_the_last() -> None:
    assert POLICY.delay_s(unavailable(), 6) is None


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
