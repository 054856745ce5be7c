"""How many replicas keep a promise: held to queueing theory, and to having none to spare."""

from __future__ import annotations

from dataclasses import replace
from math import inf, log

import pytest

from baton.core.step_times import StepTimes
from baton.platform.planner.capacity import (
    FittedPasses,
    Load,
    Promise,
    ReplicaModel,
    decode_need,
    decode_with,
    prefill_need,
    prefill_with,
    settled,
)
from baton.platform.planner.mixed import mixed_need, mixed_with
from baton.platform.planner.queueing import Service, chance_of_wait, wait_s

TIMES = StepTimes(constant_s=0.02, token_s=1e-4, pair_s=1e-9, context_s=2e-8, request_s=2e-5)
MODEL = ReplicaModel(
    passes=FittedPasses(TIMES), max_chunk=2048, num_kv_tokens=400_000, max_requests=256
)
LOAD = Load(rate=10.0, prompt_tokens=1500, output_tokens=200, prompt_cv2=0.3)
PROMISE = Promise(ttft_s=1.0, itl_s=0.05)


def test_a_wait_is_what_erlang_says() -> None:
    assert chance_of_wait(1.0, 2) == pytest.approx(1 / 3)
    assert chance_of_wait(0.5, 1) == pytest.approx(0.5)
    # M/M/1 at half load: P(wait > t) = 0.5 exp(-0.5 t) is 0.1 at t = 2 ln 5
    assert wait_s(0.5, Service(1.0, 1.0), 1, 0.9) == pytest.approx(2 * log(5))
    assert wait_s(0.05, Service(1.0), 1, 0.9) == 0.0
    assert wait_s(2.0, Service(1.0), 2, 0.9) == inf


@pytest.mark.parametrize("rate", [0.1, 10.0, 80.0])
def test_one_replica_less_would_break_the_promise(rate: float) -> None:
    load = replace(LOAD, rate=rate)
    for needed, with_ in ((prefill_need, prefill_with), (decode_need, decode_with)):
        need = needed(load, MODEL, PROMISE)
        assert need.is_kept
        if need.num_replicas > 1:
            assert not with_(load, MODEL, PROMISE, need.num_replicas - 1).is_kept
    first, later = mixed_need(load, replace(MODEL, max_chunk=256), PROMISE)
    assert first.is_kept and later.is_kept
    if first.num_replicas > 1:
        fewer = mixed_with(load, replace(MODEL, max_chunk=256), PROMISE, first.num_replicas - 1)
        assert not all(need.is_kept for need in fewer)


def test_a_promise_that_none_could_keep_asks_for_no_more_than_work_through() -> None:
    hasty = Promise(ttft_s=0.01, itl_s=0.001)

    prefill = prefill_need(LOAD, MODEL, hasty)
    decode = decode_need(LOAD, MODEL, hasty)
    mixed = mixed_need(LOAD, MODEL, hasty)

    assert not (prefill.is_kept or decode.is_kept or mixed[0].is_kept)
    assert 0.6 < prefill.busy < 1.0
    assert decode.num_replicas == 1
    assert mixed[0].num_replicas < 5


def test_pieces_of_a_long_prompt_read_what_is_before_them() -> None:
    """The passes of a prompt are as long beside those who decode as they are alone."""
    times = StepTimes(constant_s=0.01, token_s=1e-5, pair_s=2e-9)
    model = replace(MODEL, passes=FittedPasses(times))
    load = Load(rate=0.02, prompt_tokens=60 * 2048, output_tokens=2)
    alone_s = model.prefill_s(load.prompt_tokens)

    first, _ = mixed_with(load, model, PROMISE, 1)
    overrun, _ = mixed_with(replace(load, rate=1.1 / alone_s), model, PROMISE, 1)

    assert alone_s > 5 * 60 * model.passes.prompt_s(2048, 0)
    assert first.busy == pytest.approx(load.rate * alone_s, rel=0.01)
    assert overrun.busy == inf and not overrun.is_kept


def test_what_caches_hold_is_not_computed_and_is_read_and_kept() -> None:
    hits = replace(LOAD, cached_tokens=6000.0)

    prefill, decode = prefill_with(hits, MODEL, PROMISE, 8), decode_with(hits, MODEL, PROMISE, 8)
    first, later = mixed_with(hits, replace(MODEL, max_chunk=256), PROMISE, 16)

    assert hits.held_tokens == LOAD.held_tokens + 6000
    pairs_s = 1500 * 6000 * TIMES.pair_s
    alone_s = MODEL.prefill_s(1500) + pairs_s
    assert prefill.busy == pytest.approx(LOAD.rate * alone_s / 8)
    assert decode.seconds > decode_with(LOAD, MODEL, PROMISE, 8).seconds
    without = mixed_with(LOAD, replace(MODEL, max_chunk=256), PROMISE, 16)
    assert first.busy > without[0].busy and later.batch > without[1].batch


def test_half_of_all_requests_are_promised_as_much_as_others() -> None:
    """Of what is overrun not even the median is known."""
    half = replace(PROMISE, share=0.5)
    load = replace(LOAD, rate=100.0)

    need = decode_need(load, replace(MODEL, max_requests=16), half)

    assert need.is_kept and need.num_replicas > 10
    assert half.peak(inf) == inf and half.peak(4.0) == 4.0


def test_a_batch_near_the_most_is_followed_to_its_end() -> None:
    """x = 1 + 0.98 x has its end at 50, and hardly moves long before."""
    assert settled(lambda batch: 1 + 0.98 * batch, 100.0) == pytest.approx(50.0)
    assert settled(lambda batch: 1 + 0.98 * batch, 40.0) == inf
    assert settled(lambda batch: 1 + 1.02 * batch, 1e3) == inf


def test_a_cache_that_holds_few_requests_takes_more_replicas() -> None:
    small = replace(MODEL, num_kv_tokens=20_000)

    few = decode_need(LOAD, small, PROMISE)

    assert few.num_replicas > decode_need(LOAD, MODEL, PROMISE).num_replicas
    assert PROMISE.peak(few.batch) <= 20_000 / LOAD.held_tokens
