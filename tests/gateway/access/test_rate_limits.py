"""What a tenant may ask for in a time, and what it hears when that is used up."""

from __future__ import annotations

from typing import Any

import pytest

from baton.core.clock import ManualClock
from baton.core.errors import RateLimited
from baton.gateway.access.config import TenantConfig
from baton.gateway.access.rate_limits import RateLimits

KEYS = frozenset({"k"})


def limits(clock: ManualClock, **settings: Any) -> RateLimits:
    return RateLimits({"acme": TenantConfig(api_keys=KEYS, **settings)}, clock)


def test_a_burst_of_a_minutes_requests_is_let_in_and_then_as_many_as_the_bucket_gets() -> None:
    clock = ManualClock()
    limited = limits(clock, requests_per_minute=30)

    for _ in range(30):
        limited.admit("acme", 5)
    with pytest.raises(RateLimited, match=r"gateway\.tenants\.acme\.requests_per_minute") as error:
        limited.admit("acme", 5)
    assert error.value.retry_after_s == pytest.approx(2)
    clock.advance(2)
    limited.admit("acme", 5)
    with pytest.raises(RateLimited):
        limited.admit("acme", 5)


def test_output_is_owed_and_paid_off_before_the_next_request() -> None:
    clock = ManualClock()
    limited = limits(clock, tokens_per_minute=600)
    limited.admit("acme", 100)
    limited.charge("acme", 700)

    with pytest.raises(RateLimited, match="tokens_per_minute") as error:
        limited.admit("acme", 100)

    assert error.value.retry_after_s == pytest.approx(30)  # 200 owed, 100 wanted, 10 a second
    clock.advance(30)
    limited.admit("acme", 100)


def test_a_prompt_larger_than_the_limit_waits_for_all_of_it_and_no_longer() -> None:
    clock = ManualClock()
    limited = limits(clock, tokens_per_second=100)
    limited.admit("acme", 1_000)

    with pytest.raises(RateLimited) as error:
        limited.admit("acme", 1_000)
    assert error.value.retry_after_s == pytest.approx(10)
    clock.advance(10)
    limited.admit("acme", 1_000)


def test_who_is_refused_by_one_limit_takes_nothing_of_the_others() -> None:
    clock = ManualClock()
    limited = limits(clock, requests_per_second=1, requests_per_minute=10)
    limited.admit("acme", 1)
    for _ in range(5):
        with pytest.raises(RateLimited):
            limited.admit("acme", 1)

    clock.advance(1)
    limited.admit("acme", 1)
    [allowance] = limited.allowances("acme")
    assert (allowance.limit, allowance.remaining) == (1, 0)  # the tightest
    clock.advance(1)
    [allowance] = limited.allowances("acme")
    assert (allowance.limit, allowance.remaining) == (10, 8)


def test_a_larger_share_of_a_limit_is_not_there_at_once() -> None:
    clock = ManualClock()
    limited = limits(clock, requests_per_minute=60)
    limited.be_share({"acme": 0.5})
    for _ in range(30):
        limited.admit("acme", 1)

    limited.be_share({"acme": 1.0})
    with pytest.raises(RateLimited):
        limited.admit("acme", 1)
    clock.advance(10)
    for _ in range(10):
        limited.admit("acme", 1)
    with pytest.raises(RateLimited):
        limited.admit("acme", 1)


def test_whoever_has_no_limits_is_let_in() -> None:
    limited = limits(ManualClock())
    limited.admit("acme", 10**9)
    limited.admit("somebody else", 10**9)

    assert limited.allowances("acme") == [] == limited.allowances("")


def test_limits_that_change_while_it_runs_keep_what_was_used_of_the_others() -> None:
    clock = ManualClock()
    limited = limits(clock, requests_per_minute=2, tokens_per_minute=1000)
    limited.admit("acme", 900)
    other = TenantConfig(api_keys=KEYS, requests_per_minute=3, tokens_per_minute=1000)

    limited.reconfigure({"acme": other, "bell": TenantConfig(api_keys=frozenset({"b"}))})

    with pytest.raises(RateLimited, match="tokens_per_minute"):
        limited.admit("acme", 900)
    for _ in range(3):
        limited.admit("acme", 1)
    with pytest.raises(RateLimited, match="the 3 requests"):
        limited.admit("acme", 1)
    limited.admit("bell", 10**6)
