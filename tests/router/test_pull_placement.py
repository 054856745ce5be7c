"""Whether a cached prefix is fetched or computed: arithmetic on what is measured."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.fleet.known_replicas import LAYOUT, known, make_replica, view_of

from baton.core.ids import RequestId
from baton.core.messages import Receipt
from baton.core.replicas import Role
from baton.router.cache.prompt_names import PromptNames
from baton.router.cache.pulling import Holding, PullRates, RateMeter, best_source
from baton.router.placement import Placement, PlacementRequest
from baton.router.placer import Placer, Routing
from baton.router.policies.cost import Cost
from baton.router.replicas.view import ReplicaView
from baton.router.speeds.link_times import FORGET_S, LinkTime, LinkTimes

BYTES_PER_TOKEN = LAYOUT.block_bytes // LAYOUT.block_size
EQUAL = PullRates(
    min_tokens=1, latency_s=0.0, bytes_per_s=1000.0 * BYTES_PER_TOKEN, tokens_per_s=1000.0
)
"""Fetching a token takes as long as computing it."""
CHEAP = replace(EQUAL, bytes_per_s=10 * EQUAL.bytes_per_s)
A, B, C = (make_replica(name) for name in "abc")
P = make_replica("p", role=Role.PREFILL)


def is_worth_it(rates: PullRates, num_tokens: int) -> bool:
    return rates.saved_s(num_tokens, LAYOUT, (A.epoch, B.epoch)) > 0


def test_what_is_as_dear_to_fetch_as_to_compute_is_computed() -> None:
    assert not is_worth_it(EQUAL, 1000)
    assert is_worth_it(CHEAP, 1000)


def test_a_short_stretch_does_not_pay_for_the_latency() -> None:
    rates = replace(CHEAP, latency_s=0.05)

    assert not is_worth_it(rates, 60)  # 6 ms of bytes and 50 of latency, 60 of computing
    assert is_worth_it(rates, 200)


def test_a_configured_least_length_and_a_switch_are_obeyed() -> None:
    assert not is_worth_it(replace(CHEAP, min_tokens=101), 100)
    assert not is_worth_it(replace(CHEAP, is_enabled=False), 100)


@given(
    num_tokens=st.integers(1, 10**6),
    more=st.integers(1, 10**6),
    latency_s=st.floats(0, 10),
    speed=st.floats(0.01, 100),
)
def test_if_a_prefix_is_worth_fetching_a_longer_one_is(
    num_tokens: int, more: int, latency_s: float, speed: float
) -> None:
    rates = replace(EQUAL, latency_s=latency_s, bytes_per_s=speed * EQUAL.bytes_per_s)

    if is_worth_it(rates, num_tokens):
        assert is_worth_it(rates, num_tokens + more)


def test_the_longest_holding_of_another_replica_is_asked() -> None:
    holdings = [Holding(A, 900), Holding(B, 400), Holding(C, 500)]

    assert best_source(holdings, num_held=0, taker=A.epoch, rates=CHEAP) == Holding(C, 500)
    assert best_source(holdings, num_held=500, taker=B.epoch, rates=CHEAP) == Holding(A, 900)
    assert best_source(holdings, num_held=900, taker=B.epoch, rates=CHEAP) is None
    assert best_source([], num_held=0, taker=A.epoch, rates=CHEAP) is None


def test_rates_are_those_configured_until_receipts_tell_better() -> None:
    meter = RateMeter(EQUAL)
    observe = partial(meter.observe, pair=None, now=0.0)
    assert meter.rates == EQUAL

    observe(Receipt(prompt_tokens=500, cached_tokens=100, prefill_ms=100.0))
    assert meter.rates == replace(EQUAL, tokens_per_s=4000.0)

    observe(Receipt(pulled_tokens=64, kv_bytes=10**6, transfer_ms=10.0, transport="shm"))
    assert meter.rates == replace(EQUAL, tokens_per_s=4000.0, bytes_per_s=1e8)

    observe(Receipt(pulled_tokens=64, kv_bytes=10**6, transfer_ms=5.0, transport="shm"))
    assert meter.rates.bytes_per_s == pytest.approx(1.2e8)


def test_a_handoffs_time_says_nothing_of_how_fast_kv_travels() -> None:
    meter = RateMeter(EQUAL)
    observe = partial(meter.observe, pair=(A.epoch, B.epoch), now=0.0)

    observe(Receipt(prefill_replica="p", pulled_tokens=9, kv_bytes=10**9, transfer_ms=1.0))
    observe(Receipt(pulled_tokens=9, kv_bytes=100, transfer_ms=1.0))  # latency alone

    assert meter.rates == EQUAL


def pulled(num_bytes: int, seconds: float) -> Receipt:
    return Receipt(pulled_tokens=1000, kv_bytes=num_bytes, transfer_ms=1e3 * seconds)


def test_who_is_far_away_is_not_asked_while_another_has_nearly_as_much() -> None:
    meter = RateMeter(CHEAP)
    far, near = Holding(A, 1000), Holding(C, 900)
    ask = partial(best_source, num_held=0, taker=B.epoch)
    assert ask([far, near], rates=meter.rates) == far

    for _ in range(5):  # fifty times slower than all are known to be
        meter.observe(pulled(10**6, 50e6 / CHEAP.bytes_per_s), (A.epoch, B.epoch), now=1.0)
        meter.observe(pulled(10**6, 1e6 / CHEAP.bytes_per_s), (C.epoch, B.epoch), now=1.0)

    assert ask([far, near], rates=meter.rates) == near
    assert ask([far], rates=meter.rates) is None  # to compute it is sooner
    assert ask([far], rates=meter.rates, taker=C.epoch) == far  # that way nothing is amiss


def test_a_link_that_was_slow_long_ago_is_tried_again() -> None:
    meter, pair = RateMeter(CHEAP), (A.epoch, B.epoch)
    for _ in range(5):
        meter.observe(pulled(10**6, 10.0), pair, now=1.0)
    slow_s = meter.rates.fetch_s(1000, LAYOUT, pair)

    meter.observe(Receipt(), None, now=1.0 + 2 * FORGET_S)

    assert meter.rates.fetch_s(1000, LAYOUT, pair) < slow_s
    assert meter.rates.fetch_s(1000, LAYOUT, pair) == meter.rates.fetch_s(
        1000, LAYOUT, (C.epoch, B.epoch)
    )


def test_a_links_latency_and_rate_are_told_apart() -> None:
    usual, links, pair = LinkTime(0.01, 1e9), LinkTimes(), (A.epoch, B.epoch)
    for num_bytes in (10**6, 10**8) * 20:
        links.observe(pair, num_bytes, 0.05 + num_bytes / 1e8, usual)

    line = links.of(pair)

    assert line is not None
    assert line.seconds(10**8) == pytest.approx(1.05, rel=0.15)
    assert line.seconds(10**6) == pytest.approx(0.06, rel=0.5)
    assert links.of((B.epoch, A.epoch)) is None


def place(
    num_tokens: int, *views: ReplicaView, rates: PullRates = CHEAP, **request: Any
) -> Placement:
    view = view_of(
        [view for view in views if view.info.role is Role.DECODE],
        [view for view in views if view.info.role is Role.PREFILL],
        rates,
    )
    wanted = PlacementRequest(request_id=RequestId("r"), num_tokens=num_tokens, **request)
    placer = Placer(Routing(Cost()), lambda names, epoch: [0] * len(names))
    placement = placer.place(wanted, PromptNames(), view, now=0.0)
    assert isinstance(placement, Placement)
    return placement


def test_a_decode_replica_fetches_what_a_busy_one_has_cached() -> None:
    placement = place(
        1000,
        known(A, num_cached_tokens=960, num_open=A.max_open),
        known(B),
        known(P),
    )

    assert placement.decode == B
    assert placement.source == A.endpoint
    assert placement.prefill == ()  # with 960 tokens fetched it is a short prompt
    assert placement.reason == (
        "40 of 1000 tokens uncached, too few for a handoff (gateway.short_prompt_tokens): "
        "computed locally; 960 tokens cached on a"
    )


def test_a_prefill_replica_fetches_what_the_decode_replica_has_cached() -> None:
    placement = place(
        1000,
        known(A, num_cached_tokens=400),
        known(P, num_cached_tokens=100),
    )

    assert placement.prefill == (P.endpoint,)
    assert placement.source == A.endpoint
    assert placement.num_prefill_tokens == 600


def test_nobody_fetches_what_is_cheaper_to_compute() -> None:
    views = (
        known(A, num_cached_tokens=960, num_open=A.max_open),
        known(B),
        known(P),
    )

    placement = place(1000, *views, rates=EQUAL)

    assert placement.source is None
    assert placement.prefill == (P.endpoint,)


def test_a_replica_that_drains_can_be_fetched_from_but_a_lost_one_cannot() -> None:
    draining = known(replace(A, is_ready=False), num_cached_tokens=960)

    assert place(1000, draining, known(B)).source == A.endpoint
    assert place(1000, draining, known(B), lost=frozenset({A.epoch})).source is None
    away = known(replace(A, is_ready=False), num_cached_tokens=960, is_connected=False)
    assert place(1000, away, known(B)).source is None


def handed_off(num_bytes: int, seconds: float) -> Receipt:
    return Receipt(
        prefill_replica="p",
        kv_bytes=num_bytes,
        queue_ms=5000.0,
        prefill_ms=400.0,
        transfer_ms=400.0 + 1e3 * seconds,  # it is opened once the prompt is scheduled
    )


Q = make_replica("q", role=Role.PREFILL)


def test_who_is_far_from_who_decodes_computes_nothing_for_it_while_others_are_free() -> None:
    meter = RateMeter(EQUAL)
    for _ in range(5):
        meter.observe(handed_off(10**6, 2.0), None, 1.0, (P.epoch, A.epoch))
        meter.observe(handed_off(10**6, 0.001), None, 1.0, (Q.epoch, A.epoch))
    rates = replace(meter.rates, is_enabled=False)

    by_a = place(1000, known(A), known(P, num_cached_tokens=500), known(Q), rates=rates)
    by_b = place(1000, known(B), known(P, num_cached_tokens=500), known(Q), rates=rates)

    assert by_a.prefill[0] == Q.endpoint
    assert by_b.prefill[0] == P.endpoint  # of that pair nothing is known
    near, far = by_a.considered
    assert near.terms["transfer_s"] < 0.4 and far.terms["transfer_s"] > 1.0


def test_a_replica_that_can_fetch_a_prefix_costs_no_more_than_fetching_it() -> None:
    """p has it and is busy for two seconds; q computes all of it in one, or fetches most of it in
    0.08."""
    busy = known(P, num_cached_tokens=800, num_queued_tokens=2000)

    placement = place(1000, known(A), busy, known(Q), rates=CHEAP)
    computed = place(1000, known(A), busy, known(Q), rates=replace(CHEAP, is_enabled=False))

    assert placement.prefill[0] == computed.prefill[0] == Q.endpoint
    assert placement.source == P.endpoint and computed.source is None
    assert placement.considered[0].terms["work_s"] == pytest.approx(0.2)
    assert placement.considered[0].terms["transfer_s"] == pytest.approx(0.08 + CHEAP.handoff_s)
    assert computed.considered[0].terms["work_s"] == pytest.approx(1.0)


def test_who_has_a_prefix_is_left_for_one_that_fetches_it_if_that_is_sooner() -> None:
    """Computed anew at q, it would be later than behind what p has to do; fetched it is sooner."""
    busy = known(P, num_cached_tokens=800, num_queued_tokens=600)

    fetched = place(1000, known(A), busy, known(Q))
    computed = place(1000, known(A), busy, known(Q), rates=replace(CHEAP, is_enabled=False))

    assert (fetched.prefill[0], fetched.source) == (Q.endpoint, P.endpoint)
    assert computed.prefill[0] == P.endpoint


def test_a_prefix_is_fetched_over_a_near_link_rather_than_a_far_one() -> None:
    meter = RateMeter(CHEAP)
    for _ in range(5):
        meter.observe(pulled(10**6, 500e6 / CHEAP.bytes_per_s), (P.epoch, B.epoch), now=1.0)
        meter.observe(pulled(10**6, 1e6 / CHEAP.bytes_per_s), (P.epoch, C.epoch), now=1.0)
    rates = replace(meter.rates, bytes_per_s=CHEAP.bytes_per_s)

    placement = place(
        1000,
        known(replace(P, role=Role.DECODE), num_cached_tokens=960, num_open=P.max_open),
        *(known(B), known(C)),
        rates=rates,
    )

    assert (placement.decode, placement.source) == (C, P.endpoint)


def test_one_handoff_that_was_late_says_nothing_of_the_two() -> None:
    meter = RateMeter(EQUAL)
    for _ in range(5):
        meter.observe(handed_off(1000 * BYTES_PER_TOKEN, 0.001), None, 1.0, (Q.epoch, A.epoch))
    meter.observe(handed_off(1000 * BYTES_PER_TOKEN, 2.0), None, 1.0, (P.epoch, A.epoch))
    rates = replace(meter.rates, is_enabled=False)

    placement = place(1000, known(A), known(P, num_cached_tokens=500), known(Q), rates=rates)

    assert placement.prefill[0] == P.endpoint
