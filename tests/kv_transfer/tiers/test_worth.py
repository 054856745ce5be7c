from __future__ import annotations

import pytest

from baton.core.clock import ManualClock
from baton.kv_transfer.tiers.stack import TierPart
from baton.kv_transfer.tiers.worth import FORGET_AFTER_S, Rate, blocks_worth_taking

HOST, STORE = TierPart("host", 10), TierPart("store", 4)


def worth(*stretches: TierPart, tokens_per_s: float | None, **bytes_per_s: float | None) -> int:
    return blocks_worth_taking(
        stretches,
        block_bytes=1000,
        block_tokens=16,
        bytes_per_s=bytes_per_s,
        tokens_per_s=tokens_per_s,
    )


def test_what_is_read_faster_than_computed_is_taken() -> None:
    assert worth(HOST, tokens_per_s=1600, host=200_000) == 10  # 10 ms a block against 5 ms


def test_what_is_computed_faster_than_read_is_not() -> None:
    assert worth(HOST, tokens_per_s=1600, host=50_000) == 0


def test_a_slow_end_of_a_prefix_is_left_where_it_is() -> None:
    assert worth(HOST, STORE, tokens_per_s=1600, host=200_000, store=1_000) == 10


def test_a_slow_beginning_is_taken_if_the_whole_pays() -> None:
    assert worth(STORE, HOST, tokens_per_s=1600, host=1e9, store=60_000) == 14
    assert worth(STORE, HOST, tokens_per_s=1600, host=1e9, store=1_000) == 0


def test_what_is_not_known_yet_is_tried() -> None:
    assert worth(HOST, STORE, tokens_per_s=None, host=1.0, store=1.0) == 14
    assert worth(HOST, STORE, tokens_per_s=1600) == 14


def test_nothing_is_worth_nothing() -> None:
    assert worth(tokens_per_s=1600, host=1.0) == 0


def test_a_rate_follows_what_is_observed_and_is_forgotten_after_a_while() -> None:
    clock = ManualClock()
    rate = Rate(clock)
    assert rate.per_s is None

    rate.observe(100, 1.0)
    assert rate.per_s == 100
    rate.observe(200, 1.0)
    assert rate.per_s == pytest.approx(130)
    rate.observe(0, 1.0)
    rate.observe(5, 0.0)
    assert rate.per_s == pytest.approx(130)

    clock.advance(FORGET_AFTER_S + 1)
    assert rate.per_s is None
