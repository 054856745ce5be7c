"""The life of requests in an engine: refused, aborted, seen by hooks, reported."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.echo_engines import VOCAB, make_engine, make_request, run

from baton.core.clock import ManualClock
from baton.core.errors import InvalidRequest
from baton.core.kv_pool import Holder, HolderKind
from baton.engine.config import EngineConfig, SchedulerConfig
from baton.engine.engine import Engine
from baton.engine.passes.echo import EchoRunner, echo_info, echo_output
from baton.engine.request.request import Phase, Request
from baton.engine.schedule.drafted_chunks import ScheduledChunk
from baton.engine.step_hooks import StepHooks

pytestmark = pytest.mark.usefixtures("sync_and_async")


@pytest.mark.parametrize("num_steps", [0, 1, 3])
def test_an_aborted_request_frees_its_blocks_at_once(num_steps: int) -> None:
    """Waiting, in the middle of its prompt, or decoding."""
    engine = make_engine(scheduler=SchedulerConfig(prefill_chunk=6))
    request = make_request()
    engine.add(request)
    for _ in range(num_steps):
        engine.step()

    assert engine.abort("r") is request
    assert request.phase is Phase.FINISHED
    assert (engine.has_work, engine.pool.num_in_use) == (False, 0)
    assert engine.abort("r") is None


def test_a_preempted_and_an_adopted_request_can_be_aborted_too() -> None:
    engine, lease = make_engine(num_blocks=6), Holder(HolderKind.LEASE, "in")
    for name in ("1", "2"):
        engine.add(make_request(name, [int(name)] * 10))
    while not engine.stats.num_preempted:
        engine.step()
    engine.abort("1")
    engine.pool.reserve(lease, range(4), b"")
    engine.adopt(make_request("3", range(4), output=[1]), lease)

    assert engine.abort("2") is not None
    assert engine.abort("3") is not None
    assert (engine.num_waiting, engine.pool.num_in_use) == (0, 0)


def test_a_hook_may_abort_the_request_that_is_about_to_run() -> None:
    engine = make_engine()
    gone, stays = make_request("gone"), make_request("stays")

    def abort(request: Request) -> None:
        if request is gone:
            engine.abort("gone")

    engine.add(gone)
    engine.add(stays)
    run(engine, StepHooks(on_scheduled=abort))

    assert gone.output == []
    assert stays.output == echo_output(range(11), 8, VOCAB)
    assert engine.pool.num_in_use == 0


def test_hooks_see_a_request_before_it_runs_and_while_it_holds_its_blocks() -> None:
    engine, request = make_engine(), make_request(max_tokens=1)
    seen: list[tuple[str, int, int]] = []

    def see(what: str, request: Request) -> None:
        seen.append((what, request.num_computed, len(engine.pool.table(request.holder))))

    def see_layer(layer: int, chunks: Sequence[ScheduledChunk]) -> None:
        for chunk in chunks:
            see(f"layer {layer} of {chunk.num_tokens} tokens", chunk.request)

    engine.add(request)

    (report,) = run(
        engine,
        StepHooks(on_scheduled=lambda request: see("scheduled", request), on_layer=see_layer),
    )

    assert seen == [
        ("scheduled", 0, 3),
        ("layer 0 of 11 tokens", 0, 3),
        ("layer 1 of 11 tokens", 0, 3),
    ]
    assert report.first_scheduled == (request,)


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (make_request(prompt=[]), "prompt"),
        (make_request(prompt=[VOCAB]), "prompt"),
        (make_request(prompt=[-1]), "prompt"),
        (make_request(prompt=[1] * 16), "prompt"),
        (make_request(output=[1] * 3, max_tokens=3), "max_tokens"),
        (make_request("taken"), "request_id"),
    ],
)
def test_a_request_that_can_never_run_is_refused_with_the_field_at_fault(
    request_: Request, field: str
) -> None:
    engine = make_engine(num_blocks=4)
    engine.add(make_request("taken"))

    with pytest.raises(InvalidRequest) as refusal:
        engine.add(request_)

    assert refusal.value.field == field
    assert engine.num_waiting == 1


def test_a_report_says_what_the_step_did() -> None:
    engine = make_engine(scheduler=SchedulerConfig(max_batch_tokens=12))
    engine.add(make_request("a", range(4)))
    engine.add(make_request("b", range(100, 120)))
    engine.add(make_request("c"))

    report = engine.step()

    assert (report.num_tokens, report.num_requests) == (12, 2)
    assert (report.num_running, report.num_waiting) == (2, 1)
    assert [output.request.request_id for output in report.outputs] == ["a"]
    assert report.num_blocks_in_use == 6
    assert engine.num_queued_tokens == 1 + 12 + 11


def test_stamps_follow_the_engines_clock() -> None:
    clock, request = ManualClock(10.0), make_request(max_tokens=2)
    runner = EchoRunner(echo_info(), num_blocks=8)
    engine = Engine(runner, EngineConfig(), clock=clock)
    engine.add(request)
    clock.advance(1)
    engine.step()
    clock.advance(1)
    engine.step()

    assert (request.arrived_at, request.scheduled_at, request.first_token_at) == (10, 11, 11)


def test_logprobs_come_with_the_tokens_when_asked_for() -> None:
    engine = make_engine()
    engine.add(make_request("with", num_logprobs=2, max_tokens=1))
    engine.add(make_request("without", range(5), max_tokens=1))

    with_logprobs, without = run(engine)[0].outputs

    (logprob,) = with_logprobs.logprobs
    assert logprob.token == with_logprobs.tokens[0]
    assert len(logprob.top) == 2
    assert without.logprobs == ()


def test_a_cache_of_another_block_size_is_refused() -> None:
    with pytest.raises(ValueError, match="block_size=4"):
        Engine(EchoRunner(echo_info(), num_blocks=4, block_size=4), EngineConfig())
