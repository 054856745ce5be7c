"""Async scheduling returns what sync scheduling would, and a pass in flight writes only to blocks
that its own requests hold.

`LateRunner` is a device that computes as late as it may: the KV of a decode pass is written when
the host waits for its results, or when the next pass is launched, and never earlier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.echo_engines import BLOCK_SIZE, VOCAB, make_request, run
from tests.engine.schedule.late_runner import late_engine
from tests.grammar_compilers import LETTERS, AnyToken
from torch import Tensor

from baton.core.errors import Unavailable
from baton.core.kv_pool import Holder, HolderKind
from baton.core.sampling import SamplingParams
from baton.engine.batch.batch import Chunk, OnLayer
from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig
from baton.engine.engine import Engine
from baton.engine.passes.echo import EchoRunner, echo_info, echo_output
from baton.engine.request.request import Request
from baton.engine.schedule.drafted_chunks import ScheduledChunk
from baton.engine.speculation.draft_budget import FixedBudget
from baton.engine.speculation.drafter import NO_DRAFT, Draft
from baton.engine.speculation.speculation import Speculation
from baton.engine.step_hooks import StepHooks


def prompt_engine(*, num_blocks: int = 256, eos_token_ids: tuple[int, ...] = ()) -> Engine:
    """That reads each pass before it launches the next."""
    info = echo_info(vocab_size=VOCAB, eos_token_ids=eos_token_ids, num_layers=2)
    config = EngineConfig(
        cache=CacheConfig(block_size=BLOCK_SIZE), scheduler=SchedulerConfig(async_scheduling="off")
    )
    return Engine(EchoRunner(info, num_blocks=num_blocks, block_size=BLOCK_SIZE), config)


def check_pool(engine: Engine) -> None:
    census = engine.pool.census()
    assert not census.tables
    assert len(census.cached) + len(census.free) == census.num_blocks


def given_out(
    engine: Engine,
) -> list[tuple[list[tuple[str, tuple[int, ...], bool, int]], int, int]]:
    """Of each step: what everybody got, tokens run and requests that run on."""
    return [
        (
            [(o.request.request_id, o.tokens, o.is_finished, o.num_run) for o in report.outputs],
            report.num_tokens,
            report.num_running,
        )
        for report in run(engine)
    ]


def test_every_step_gives_out_what_it_would_one_by_one() -> None:
    found = []
    for engine in (prompt_engine(), late_engine()[0]):
        for i in range(4):
            engine.add(make_request(str(i), range(5 + i), max_tokens=6 + 5 * i))
        found.append(given_out(engine))
        check_pool(engine)

    assert found[0] == found[1]


def test_the_next_pass_is_launched_before_this_ones_tokens_are_read() -> None:
    engine, runner = late_engine()
    engine.add(make_request(prompt=range(7), max_tokens=5))
    launched = []
    while engine.has_work:
        engine.step()
        launched.append((runner.num_launched, len(runner.late)))

    # The prompt; two at once, one of them read; one a step; none over the last.
    assert launched == [(1, 0), (3, 1), (4, 1), (5, 1), (5, 0)]


class SeldomFinding:
    """Drafts two tokens of every fifth position, and nothing elsewhere."""

    name, is_costly = "seldom", False

    def propose(self, requests: Sequence[Request], max_tokens: int) -> list[Draft]:
        return [
            NO_DRAFT
            if len(request.output) % 5
            else Draft(echo_output(request.tokens, 2, VOCAB), (0.9, 0.9))
            for request in requests
        ]

    def forget(self, request: Request) -> None:
        """It keeps nothing."""


def test_where_nothing_is_drafted_a_pass_is_launched_ahead_and_then_drafts_are_looked_for() -> None:
    engine, runner = late_engine()
    engine.speculation = Speculation(SeldomFinding(), FixedBudget(2))
    request = make_request(prompt=range(7), max_tokens=60)
    engine.add(request)
    was_in_flight = []
    while engine.has_work:
        engine.step()
        was_in_flight.append(bool(runner.late))

    assert request.output == echo_output(range(7), 60, VOCAB)
    assert engine.stats.num_accepted > 0
    assert sum(was_in_flight) > len(was_in_flight) / 3
    assert (True, True) not in pairwise(was_in_flight)  # else nobody would be asked again


def test_a_pass_is_not_launched_over_the_last_token_that_somebody_may_have() -> None:
    engine, runner = late_engine()
    short, long = make_request("s", range(5), max_tokens=4), make_request("l", max_tokens=9)
    engine.add(short)
    engine.add(long)

    run(engine)

    assert runner.num_launched == engine.stats.num_steps
    assert long.output == echo_output(long.prompt, 9, VOCAB)


def test_who_ends_by_a_token_gives_up_blocks_only_when_nothing_writes_to_them() -> None:
    ends = make_request("ends", range(6), max_tokens=40)
    answer = echo_output(ends.prompt, 40, VOCAB)
    eos = next(token for at, token in enumerate(answer) if at > 4 and token not in answer[:at])
    stays = make_request("stays", range(40, 47), max_tokens=30, ignore_eos=True)
    engine, runner = late_engine(eos_token_ids=(eos,))
    engine.add(ends)
    engine.add(stays)
    while ends.request_id in engine.request_ids:
        engine.step()

    assert not runner.late
    assert ends.output == answer[: answer.index(eos) + 1]
    num_steps, num_given = engine.stats.num_steps, len(stays.output)
    report = engine.step()  # of the turn that was in flight
    assert [output.request for output in report.outputs] == [stays]
    assert len(stays.output) == num_given + 1
    run(engine)
    assert stays.output == echo_output(stays.prompt, 30, VOCAB)
    assert num_steps < engine.stats.num_steps
    check_pool(engine)


@pytest.mark.parametrize("at", [1, 2, 3, 4, 5, 9])
def test_an_abort_waits_for_the_pass_in_flight_and_leaves_the_others_alone(at: int) -> None:
    engine, runner = late_engine()
    requests = [make_request(str(i), range(6 + i), max_tokens=12) for i in range(3)]
    for request in requests:
        engine.add(request)
    for _ in range(at):
        engine.step()

    engine.abort("1")

    assert not runner.late
    assert len(requests[1].output) == at
    reports = run(engine)
    assert [len(report.outputs) for report in reports] == [2] * (12 - at)
    assert (requests[1].num_computed, requests[1].num_run) == (7 + at - 1, 7 + at - 1)
    for request in (requests[0], requests[2]):
        assert request.output == echo_output(request.prompt, 12, VOCAB)
    check_pool(engine)


def test_when_all_of_a_flight_are_gone_there_is_nothing_left_to_do() -> None:
    engine, runner = late_engine()
    engine.add(make_request(max_tokens=12))
    for _ in range(3):
        engine.step()
    assert runner.late

    engine.abort("r")

    assert (engine.has_work, engine.pool.num_in_use, len(runner.late)) == (False, 0, 0)
    engine.add(make_request("next", range(50, 59), max_tokens=5))
    (first, *_) = run(engine)
    assert first.num_tokens == 9


def test_somebody_who_comes_is_taken_in_after_the_pass_in_flight() -> None:
    engine, runner = late_engine()
    first = make_request("1", range(7), max_tokens=30)
    second = make_request("2", range(50, 61), max_tokens=9)
    engine.add(first)
    for _ in range(6):
        engine.step()

    engine.add(second)
    in_flight, together = engine.step(), engine.step()

    assert (in_flight.num_tokens, len(runner.late)) == (1, 0)
    assert together.num_tokens == 1 + 11
    run(engine)
    assert first.output == echo_output(first.prompt, 30, VOCAB)
    assert second.output == echo_output(second.prompt, 9, VOCAB)


def test_no_pass_is_launched_while_transfers_hold_the_blocks_and_nobody_runs() -> None:
    engine, runner = late_engine(num_blocks=4)
    lease = Holder(HolderKind.LEASE, "transfer")
    engine.pool.reserve(lease, range(100, 100 + 4 * BLOCK_SIZE), b"")
    engine.add(make_request(prompt=range(7), max_tokens=3))

    report = engine.step()

    assert report.is_stalled and runner.num_launched < 1
    engine.pool.release(lease)
    run(engine)
    assert runner.num_launched == 3


def test_blocks_that_are_shared_are_not_written_to_until_the_next_step() -> None:
    """As when a request moves to another replica."""
    engine, runner = late_engine()
    request = make_request(prompt=range(6), max_tokens=20)
    engine.add(request)
    for _ in range(4):
        engine.step()
    assert runner.late

    engine.synchronize()

    assert not runner.late
    lease = Holder(HolderKind.LEASE, "to another")
    num_blocks = engine.pool.layout.num_blocks_for(request.num_computed)
    engine.pool.share(request.holder, lease, num_blocks)
    assert engine.abort("r") is request
    engine.pool.release(lease)
    check_pool(engine)


@pytest.mark.parametrize("spoilt", range(2, 10))
def test_what_is_not_finite_fails_its_request_alone_and_leaves_nothing_behind(spoilt: int) -> None:
    engine, runner = late_engine(num_blocks=32)
    bad, good = make_request("bad", max_tokens=20), make_request("good", range(30, 39))
    engine.add(bad)
    engine.add(good)
    runner.spoil = {spoilt}
    table: list[int] = []

    def note(layer: int, chunks: Sequence[ScheduledChunk]) -> None:
        table.extend(engine.pool.table(bad.holder))

    reports = run(engine, StepHooks(on_layer=note))

    (failed,) = [o for report in reports for o in report.outputs if o.request is bad and o.error]
    assert isinstance(failed.error, Unavailable)
    assert len(bad.output) == spoilt - 1
    assert good.output == echo_output(good.prompt, 8, VOCAB)
    assert engine.pool.num_cached(bad.tokens, b"") == 0
    used_again = set(engine.pool.census().cached)
    for layer in runner.cache.planes:
        assert not layer[sorted(set(table) - used_again)].any()
    check_pool(engine)


@pytest.mark.parametrize("at", range(1, 2 * BLOCK_SIZE + 2))
def test_a_pass_that_cannot_be_launched_is_computed_again(at: int) -> None:
    engine, runner = late_engine()
    request = make_request(prompt=range(6), max_tokens=3 * BLOCK_SIZE)
    engine.add(request)
    for _ in range(at):
        engine.step()
    forward = runner.forward

    def fail(chunks: Sequence[Chunk], on_layer: OnLayer) -> Tensor:
        raise RuntimeError

    runner.forward = fail  # type: ignore[method-assign, assignment]
    if at < 3 * BLOCK_SIZE - 1:
        with pytest.raises(RuntimeError):
            engine.step()
    runner.forward = forward  # type: ignore[method-assign]
    run(engine)

    assert request.output == echo_output(request.prompt, 3 * BLOCK_SIZE, VOCAB)
    check_pool(engine)


@pytest.mark.parametrize(
    "sampling",
    [
        {"num_logprobs": 1},
        {"bad_words": ((1, 2),)},
        {"allowed_token_ids": tuple(range(VOCAB))},
        {"min_tokens": 9},
        {"temperature": 1.0, "typical_p": 0.9},
    ],
    ids=str,
)
def test_rows_that_need_the_host_are_read_before_the_next_pass(sampling: dict[str, Any]) -> None:
    engine, runner = late_engine()
    engine.add(make_request("asks", range(5), **sampling))
    engine.add(make_request("plain"))

    for _ in range(5):
        engine.step()
        assert runner.num_launched == engine.stats.num_steps


def test_a_grammar_is_followed_token_by_token() -> None:
    engine, runner = late_engine()
    sampling = SamplingParams(temperature=0.0, max_tokens=6, grammar=LETTERS)
    engine.add(Request("bound", range(5), sampling=sampling, matcher=AnyToken()))

    for _ in range(4):
        engine.step()
        assert runner.num_launched == engine.stats.num_steps


def test_a_minimum_that_is_reached_holds_nobody_up_any_more() -> None:
    engine, runner = late_engine()
    engine.add(make_request("long", range(5), min_tokens=3, max_tokens=30))
    for _ in range(4):
        engine.step()
    engine.add(make_request("next", range(8), max_tokens=30))  # another persistent batch
    for _ in range(3):
        engine.step()

    assert runner.late
    assert runner.num_launched > engine.stats.num_steps


def test_hooks_are_told_of_each_layer_once_when_its_tokens_are_computed() -> None:
    seen: dict[str, list[tuple[int, int, int]]] = {}
    for name, engine in (("off", prompt_engine()), ("on", late_engine()[0])):
        told = seen[name] = []

        def note(
            layer: int,
            chunks: Sequence[ScheduledChunk],
            told: list[tuple[int, int, int]] = told,
        ) -> None:
            told.extend((layer, c.request.num_computed, c.num_tokens) for c in chunks)

        engine.add(make_request(prompt=range(6), max_tokens=9))
        run(engine, StepHooks(on_layer=note))

    assert seen["off"] == seen["on"]


def test_with_auto_scheduling_is_sync_for_a_runner_without_graphs() -> None:
    engine, runner = late_engine(scheduler=SchedulerConfig(async_scheduling="auto"))
    engine.add(make_request(max_tokens=5))
    for _ in range(3):
        engine.step()

    assert runner.num_launched == engine.stats.num_steps


@dataclass(frozen=True)
class Play:
    """A request as a test plans it, and when it comes and is given up."""

    prompt_len: int
    max_tokens: int
    comes_at: int
    goes_at: int | None
    temperature: float
    penalty: float

    def request(self, name: int) -> Request:
        sampling = SamplingParams(
            temperature=self.temperature,
            seed=name,
            max_tokens=self.max_tokens,
            frequency_penalty=self.penalty,
            repetition_penalty=1 + self.penalty / 2,
        )
        return Request(str(name), list(range(name, name + self.prompt_len)), sampling=sampling)


plays = st.lists(
    st.builds(
        Play,
        prompt_len=st.integers(1, 20),
        max_tokens=st.integers(1, 25),
        comes_at=st.integers(0, 12),
        goes_at=st.none() | st.integers(0, 20),
        temperature=st.sampled_from([0.0, 40.0]),
        penalty=st.sampled_from([0.0, 0.9]),
    ),
    min_size=1,
    max_size=6,
)


def played(engine: Engine, plan: Sequence[Play]) -> list[Request]:
    requests = [play.request(name) for name, play in enumerate(plan)]
    for step in range(24):
        for name, play in enumerate(plan):
            if play.comes_at == step:
                engine.add(requests[name])
            if play.goes_at == step:
                engine.abort(str(name))
        engine.step()
    run(engine)
    check_pool(engine)
    return requests


@given(plays, st.integers(14, 40), st.booleans())
@settings(max_examples=40, deadline=None)
def test_however_requests_come_and_go_each_gets_the_same_tokens(
    plan: Sequence[Play], num_blocks: int, has_end: bool
) -> None:
    eos_token_ids = tuple(range(0, VOCAB, 9)) if has_end else ()
    expected = played(prompt_engine(num_blocks=num_blocks, eos_token_ids=eos_token_ids), plan)

    engine, _ = late_engine(num_blocks=num_blocks, eos_token_ids=eos_token_ids)
    found = played(engine, plan)

    for play, one, other in zip(plan, expected, found, strict=True):
        if play.goes_at is None or play.goes_at <= play.comes_at:
            assert other.output == one.output
        else:  # it may have been given up a token earlier or later
            num_both = min(len(one.output), len(other.output))
            assert other.output[:num_both] == one.output[:num_both]
