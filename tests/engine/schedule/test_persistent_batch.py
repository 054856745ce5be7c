"""Steps that repeat the one before: when they may, and that nobody could tell."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.echo_engines import BLOCK_SIZE, VOCAB, make_engine, make_request, run
from torch import Tensor

from baton.core.kv_pool import Holder, HolderKind
from baton.core.messages import CachePoint, Pooling
from baton.core.sampling import SamplingParams
from baton.engine.batch.batch import Chunk, OnLayer
from baton.engine.batch.decoding import Decoding
from baton.engine.config import SchedulerConfig
from baton.engine.engine import Engine
from baton.engine.passes.echo import echo_output
from baton.engine.request.request import Request


class Watch:
    """Notes of each pass whether it was a turn of a persistent batch, and of how many requests."""

    def __init__(self, engine: Engine) -> None:
        self.passes: list[tuple[bool, int]] = []
        forward = engine.runner.forward

        def noting(chunks: Sequence[Chunk], on_layer: OnLayer) -> object:
            self.passes.append((isinstance(chunks, Decoding), len(chunks)))
            return forward(chunks, on_layer)

        engine.runner.forward = noting  # type: ignore[method-assign, assignment]


def answers(requests: Sequence[Request], max_tokens: int) -> list[list[int]]:
    return [echo_output(request.prompt, max_tokens, VOCAB) for request in requests]


def check_pool(engine: Engine) -> None:
    census = engine.pool.census()
    assert not census.tables
    assert len(census.cached) + len(census.free) == census.num_blocks


def test_requests_that_only_decode_are_lined_up_until_one_of_them_ends() -> None:
    engine = make_engine()
    watch = Watch(engine)
    requests = [make_request(str(i), range(5 + i), max_tokens=4 + 4 * i) for i in range(3)]
    for request in requests:
        engine.add(request)

    run(engine)

    prefill = (False, 3)
    assert watch.passes == [prefill, *[(True, 3)] * 3, *[(True, 2)] * 4, *[(True, 1)] * 4]
    assert [r.output for r in requests] == [
        echo_output(r.prompt, r.sampling.max_tokens, VOCAB) for r in requests
    ]
    check_pool(engine)


def test_somebody_who_comes_ends_the_batch_and_is_in_the_next() -> None:
    engine = make_engine()
    watch = Watch(engine)
    first, second = make_request("1", range(7), max_tokens=30), make_request("2", max_tokens=9)
    engine.add(first)
    for _ in range(6):
        engine.step()

    engine.add(second)
    run(engine)

    assert watch.passes[6:8] == [(False, 2), (True, 2)]
    assert [first.output] == answers([first], 30)
    assert [second.output] == answers([second], 9)


def test_somebody_who_cannot_come_in_yet_leaves_the_batch_as_it_is() -> None:
    engine = make_engine(scheduler=SchedulerConfig(max_running=2))
    watch = Watch(engine)
    requests = [make_request(str(i), range(4 + i), max_tokens=20) for i in range(3)]
    for request in requests:
        engine.add(request)

    for _ in range(10):
        engine.step()

    assert watch.passes[1:] == [(True, 2)] * 9
    run(engine)
    assert [request.output for request in requests] == answers(requests, 20)


@pytest.mark.usefixtures("sync_and_async")
def test_a_batch_that_gets_no_more_blocks_makes_room_as_ever() -> None:
    engine = make_engine(num_blocks=8)
    requests = [make_request(str(i), range(2 * i, 2 * i + 6), max_tokens=24) for i in range(3)]
    for request in requests:
        engine.add(request)

    run(engine)

    assert engine.stats.num_preempted > 0
    assert [request.output for request in requests] == answers(requests, 24)
    check_pool(engine)


@pytest.mark.usefixtures("sync_and_async")
def test_blocks_are_named_as_they_fill_and_found_by_the_next() -> None:
    engine = make_engine()
    first = make_request("1", range(BLOCK_SIZE), max_tokens=4 * BLOCK_SIZE)
    engine.add(first)
    run(engine)

    again = make_request("2", first.tokens[: 4 * BLOCK_SIZE + 1], max_tokens=1)
    engine.add(again)
    run(engine)

    assert again.num_cached == 4 * BLOCK_SIZE


@pytest.mark.usefixtures("sync_and_async")
def test_tokens_run_are_counted_in_a_batch_too() -> None:
    engine, request = make_engine(), make_request(prompt=range(7), max_tokens=10)
    engine.add(request)

    *_, last = run(engine)

    assert last.outputs[0].num_run == 7 + 9


def test_a_last_chunk_of_one_token_is_still_read_for_what_is_asked_of_the_prompt() -> None:
    """It looks like the token of one that decodes."""
    engine = make_engine(scheduler=SchedulerConfig(prefill_chunk=7))
    watch = Watch(engine)
    asking = make_request("1", range(8), max_tokens=1, num_prompt_logprobs=1)
    plain = SamplingParams(temperature=0.0, max_tokens=1)
    pinning = Request(
        "2",
        list(range(20, 28)),
        sampling=plain,
        cache_points=[CachePoint(num_tokens=8, ttl_s=60.0)],
    )
    embedded = Request("3", list(range(40, 48)), sampling=plain, pooling=Pooling.MEAN)
    for request in (asking, pinning, embedded):
        engine.add(request)
        *_, last = run(engine)
        assert watch.passes[-2:] == [(False, 1)] * 2, request

    assert last.outputs[0].embedding is not None


@pytest.mark.parametrize("at", range(1, 2 * BLOCK_SIZE))
def test_a_pass_that_failed_is_computed_again(at: int) -> None:
    engine, request = make_engine(), make_request(prompt=range(6), max_tokens=3 * BLOCK_SIZE)
    engine.add(request)
    for _ in range(at):
        engine.step()
    forward = engine.runner.forward

    def fail(chunks: Sequence[Chunk], on_layer: OnLayer) -> Tensor:
        raise RuntimeError

    engine.runner.forward = fail  # type: ignore[method-assign, assignment]
    with pytest.raises(RuntimeError):
        engine.step()
    engine.runner.forward = forward  # type: ignore[method-assign]
    run(engine)

    assert [request.output] == answers([request], 3 * BLOCK_SIZE)
    check_pool(engine)


@pytest.mark.usefixtures("sync_and_async")
def test_blocks_that_others_than_requests_release_let_in_who_waits() -> None:
    engine = make_engine(num_blocks=8)
    running = make_request("1", max_tokens=18)
    waiting = make_request("2", range(50, 58), max_tokens=2)
    lease = Holder(HolderKind.LEASE, "of a handoff")
    assert engine.pool.reserve(lease, range(100, 104), b"") is not None
    engine.add(running)
    for _ in range(10):
        engine.step()
    engine.add(waiting)
    engine.step()
    assert (engine.num_running, engine.num_waiting) == (1, 1)

    engine.pool.release(lease)
    engine.step()

    assert engine.num_waiting == 0


@pytest.mark.parametrize("at", [1, 3, 4, 5])
def test_an_abort_between_two_turns_leaves_the_others_alone(at: int) -> None:
    engine = make_engine()
    requests = [make_request(str(i), range(6 + i), max_tokens=12) for i in range(3)]
    for request in requests:
        engine.add(request)
    for _ in range(at):
        engine.step()

    engine.abort("1")
    run(engine)

    assert len(requests[1].output) == at
    assert [requests[0].output, requests[2].output] == answers([requests[0], requests[2]], 12)
    check_pool(engine)


@pytest.mark.usefixtures("sync_and_async")
def test_drawn_tokens_do_not_depend_on_who_is_in_the_batch() -> None:
    def draw(neighbours: int) -> list[int]:
        engine = make_engine()
        sampling = SamplingParams(temperature=60.0, seed=5, max_tokens=30)
        request = Request("drawn", list(range(9)), sampling=sampling)
        engine.add(request)
        for i in range(neighbours):
            engine.add(make_request(str(i), range(3 * i + 2), max_tokens=5 + 6 * i))
        run(engine)
        return request.output

    alone = draw(0)

    assert draw(1) == draw(4) == alone
    assert len(set(alone)) > 3


@given(
    st.lists(
        st.tuples(st.integers(1, 20), st.integers(1, 25), st.integers(0, 12)),
        min_size=1,
        max_size=6,
    ),
    st.integers(14, 40),
    st.sets(st.integers(0, 5), max_size=2),
)
@settings(max_examples=60, deadline=None)
def test_however_requests_come_and_go_each_gets_its_tokens_and_no_block_is_lost(
    sizes: list[tuple[int, int, int]], num_blocks: int, aborted: set[int]
) -> None:
    """Each is (prompt tokens, output tokens, the step in which it comes)."""
    engine = make_engine(num_blocks=num_blocks)
    requests = [
        make_request(str(i), range(i, i + prompt_len), max_tokens=max_tokens)
        for i, (prompt_len, max_tokens, _) in enumerate(sizes)
    ]
    for step in range(16):
        for i, (_, _, comes_at) in enumerate(sizes):
            if comes_at == step:
                engine.add(requests[i])
            elif i in aborted and comes_at + 5 == step:
                engine.abort(str(i))
        engine.step()
    run(engine)

    for i, request in enumerate(requests):
        expected = echo_output(request.prompt, sizes[i][1], VOCAB)
        assert request.output == (expected[: len(request.output)] if i in aborted else expected)
    check_pool(engine)
