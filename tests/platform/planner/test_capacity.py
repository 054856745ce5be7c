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


def test_a_cache_that_holds_few_requests_takes_more_replicas() -> None:
    small = replace(MODEL, num_kv_tokens=20_000)

    few = decode_need(LOAD, small, PROMISE)

    assert few.num_replicas > decode_need(LOAD, MODEL, PROMISE).num_replicas
    assert PROMISE.peak(few.batch) <= 20_000 / LOAD.held_tokens
