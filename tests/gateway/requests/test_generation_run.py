"""One generation from its start to its end: its time limit, and what is counted of it."""

from __future__ import annotations

import pytest
from tests.gateway.scripted import Script, ScriptedDispatcher, tokens_of

from baton.core.clock import ManualClock
from baton.core.errors import Unavailable
from baton.core.ids import RequestId
from baton.core.sampling import SamplingParams
from baton.gateway.requests.generations.generation import Generation
from baton.gateway.requests.generations.generation_run import GenerationRun
from baton.gateway.requests.metrics import GatewayMetrics

FOX = tokens_of("the fox")


def make_run(
    dispatcher: ScriptedDispatcher, *, time_left_s: float | None = None
) -> tuple[GenerationRun, ManualClock, GatewayMetrics]:
    generation = Generation(
        request_id=RequestId("r"),
        prompt=(5, 6),
        sampling=SamplingParams(max_tokens=20),
        time_left_s=time_left_s,
    )
    clock, metrics = ManualClock(), GatewayMetrics()
    run = GenerationRun(
        dispatcher, generation, metrics=metrics, spend=lambda num_tokens: None, clock=clock
    )
    return run, clock, metrics


def count_by_outcome(metrics: GatewayMetrics) -> dict[str, float]:
    return {one.labels["outcome"]: one.value for one in metrics.requests.family().samples}


async def test_the_time_limit_counts_from_when_the_request_came() -> None:
    """A choice that waited for another one has less of it left."""
    dispatcher = ScriptedDispatcher(Script(tokens=FOX))
    run, clock, _ = make_run(dispatcher, time_left_s=10.0)
    late, late_clock, _ = make_run(dispatcher, time_left_s=10.0)
    clock.advance(4.0)
    late_clock.advance(40.0)

    async with run, late:
        pass

    assert [generation.time_left_s for generation in dispatcher.generations] == [6.0, 0.0]


async def test_whoever_leaves_early_has_cancelled() -> None:
    dispatcher = ScriptedDispatcher(Script(tokens=FOX))
    run, _, metrics = make_run(dispatcher)

    async with run:
        update = await run.next()
        run.num_delivered += len(update.tokens)

    assert dispatcher.stops == [1]
    assert count_by_outcome(metrics) == {"cancelled": 1}


async def test_a_failed_start_is_counted_under_its_name() -> None:
    run, _, metrics = make_run(ScriptedDispatcher(Script(start_error=Unavailable("lost"))))

    with pytest.raises(Unavailable):
        async with run:
            pass

    assert count_by_outcome(metrics) == {"Unavailable": 1}
    assert metrics.num_open == 0
