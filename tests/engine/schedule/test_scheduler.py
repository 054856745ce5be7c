"""The scheduler as values: what runs in a pass, and how much of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.schedule.schedules import adopt, compute, make_request, make_scheduler, planned

from baton.core.sampling import SamplingParams
from baton.engine.config import SchedulerConfig
from baton.engine.request.request import Phase, Request
from baton.engine.schedule.drafted_chunks import ScheduledChunk
from baton.engine.schedule.scheduler import Scheduler


def test_a_long_prompt_is_computed_in_chunks_of_the_budget() -> None:
    scheduler = make_scheduler(config=SchedulerConfig(max_batch_tokens=7))
    scheduler.add(make_request("long", prompt_len=17))

    lengths = []
    for _ in range(4):
        chunks = scheduler.step()
        lengths.append(planned(chunks)["long"])
        compute(scheduler, chunks)

    assert lengths == [7, 7, 3, 1]


def test_one_request_runs_no_more_than_a_prefill_chunk_so_that_others_run_as_well() -> None:
    scheduler = make_scheduler(config=SchedulerConfig(max_batch_tokens=12, prefill_chunk=8))
    scheduler.add(make_request("long", prompt_len=20))
    scheduler.add(make_request("short", prompt_len=3))

    assert planned(scheduler.step()) == {"long": 8, "short": 3}


def test_running_requests_come_before_waiting_ones() -> None:
    scheduler = make_scheduler(config=SchedulerConfig(max_batch_tokens=8))
    for name in ("a", "b"):
        scheduler.add(make_request(name, prompt_len=4))
    compute(scheduler, scheduler.step())
    scheduler.add(make_request("new", prompt_len=20))

    assert planned(scheduler.step()) == {"a": 1, "b": 1, "new": 6}


def test_a_long_prompt_that_comes_back_stalls_nobody_who_decodes_or_is_handed_off() -> None:
    config = SchedulerConfig(max_batch_tokens=8)
    scheduler = make_scheduler(num_blocks=20, config=config)
    scheduler.add(make_request("first", prompt_len=3))
    compute(scheduler, scheduler.step())
    long = make_request("long", prompt_len=60)
    scheduler.add(long)
    while not long.num_preemptions:
        compute(scheduler, scheduler.step())
    scheduler.finish(next(iter(scheduler.running)))
    scheduler.pool.reset_cache()  # nothing of it is found again
    adopt(scheduler, make_request("young", prompt_len=2))
    compute(scheduler, scheduler.step())
    adopt(scheduler, make_request("younger", prompt_len=2))

    passes = []
    for _ in range(3):
        chunks = scheduler.step()
        passes.append(planned(chunks))
        compute(scheduler, chunks)

    assert passes == [{"long": 6, "young": 1, "younger": 1}] * 3
    assert [request.request_id for request in scheduler.running] == ["long", "young", "younger"]


def test_no_older_prompt_takes_the_tokens_that_finish_the_open_block_of_a_handoff() -> None:
    config = SchedulerConfig(max_batch_tokens=8)
    scheduler = make_scheduler(kv_dtype="int4", block_size=4, config=config)
    scheduler.add(make_request("long", prompt_len=60))
    compute(scheduler, scheduler.step())
    adopt(scheduler, make_request("handed off", prompt_len=8))  # 4 of its tokens are in 4 bits

    passes = []
    for _ in range(2):
        chunks = scheduler.step()
        passes.append(planned(chunks))
        compute(scheduler, chunks)

    assert passes == [{"long": 4, "handed off": 4}, {"long": 7, "handed off": 1}]


@pytest.mark.parametrize("is_running", [False, True])
def test_handoffs_that_finish_their_open_blocks_leave_each_other_and_a_prompt_a_token(
    is_running: bool,
) -> None:
    config = SchedulerConfig(max_batch_tokens=6)
    scheduler = make_scheduler(kv_dtype="int4", block_size=4, config=config)
    scheduler.add(make_request("long", prompt_len=60))
    compute(scheduler, scheduler.step())
    for name in "abcd":
        adopt(scheduler, make_request(name, prompt_len=8))
    if is_running:
        scheduler.step()  # as planned here, but nothing was computed

    assert planned(scheduler.step()) == {"long": 1, "a": 2, "b": 1, "c": 1, "d": 1}


def test_no_more_than_max_running_requests_run_at_once() -> None:
    scheduler = make_scheduler(config=SchedulerConfig(max_running=2))
    requests = [make_request(str(index)) for index in range(3)]
    for request in requests:
        scheduler.add(request)

    assert planned(scheduler.step()).keys() == {"0", "1"}
    assert (scheduler.num_running, scheduler.num_waiting) == (2, 1)
    scheduler.finish(requests[0])
    assert "2" in planned(scheduler.step())


def test_a_cached_prefix_is_not_run_again() -> None:
    scheduler = make_scheduler()
    first = make_request("first", prompt_len=10, first_token=1)
    scheduler.add(first)
    compute(scheduler, scheduler.step())
    scheduler.finish(first)
    again = make_request("again", prompt_len=10, first_token=1)
    scheduler.add(again)

    assert planned(scheduler.step()) == {"again": 2}
    assert again.num_cached == 8


def test_a_prompt_that_a_running_one_lets_fit_comes_in_although_nothing_was_released() -> None:
    scheduler = make_scheduler(num_blocks=5, config=SchedulerConfig(max_batch_tokens=6))
    for name in ("running", "its twin"):
        scheduler.add(make_request(name, prompt_len=12, first_token=1))

    passes = []
    for _ in range(4):
        chunks = scheduler.step()
        passes.append(planned(chunks))
        compute(scheduler, chunks)

    assert passes == [
        {"running": 6},
        {"running": 6},
        {"running": 1, "its twin": 4},
        {"running": 1, "its twin": 1},
    ]


def test_a_request_too_large_for_now_holds_up_those_behind_it() -> None:
    scheduler = make_scheduler(num_blocks=4)
    running, large, small = (
        make_request("running", prompt_len=6),
        make_request("large", prompt_len=12),
        make_request("small", prompt_len=1),
    )
    scheduler.add(running)
    compute(scheduler, scheduler.step())
    scheduler.add(large)
    scheduler.add(small)

    assert planned(scheduler.step()) == {"running": 1}
    scheduler.finish(running)
    assert planned(scheduler.step()) == {"large": 12, "small": 1}


def test_an_adopted_request_runs_at_once_on_the_blocks_it_brought() -> None:
    scheduler = make_scheduler(num_blocks=4)
    scheduler.add(make_request("too large for now", prompt_len=13))
    adopted = make_request("adopted", prompt_len=6)
    adopt(scheduler, adopted)

    assert planned(scheduler.step()) == {"adopted": 1}
    assert adopted.num_computed == 5


def test_adopted_requests_that_hold_the_whole_pool_do_not_wait_for_each_other_forever() -> None:
    scheduler = make_scheduler(num_blocks=4)
    first, second = make_request("first", prompt_len=9), make_request("second", prompt_len=9)
    adopt(scheduler, first)
    adopt(scheduler, second)

    assert planned(scheduler.step()) == {"first": 1}
    assert second.num_preemptions == 1
    assert second.num_computed == 0


def test_a_prompt_read_token_by_token_takes_nothing_from_the_cache() -> None:
    scheduler = make_scheduler()
    first = make_request("first", prompt_len=10, first_token=1)
    scheduler.add(first)
    compute(scheduler, scheduler.step())
    scheduler.finish(first)
    sampling = SamplingParams(max_tokens=100, num_prompt_logprobs=0)
    scheduler.add(Request("again", first.prompt, sampling=sampling))

    assert planned(scheduler.step()) == {"again": 10}


@pytest.mark.parametrize("is_running", [False, True])
def test_a_finished_request_leaves_its_queue_and_frees_its_blocks(is_running: bool) -> None:
    scheduler = make_scheduler()
    request = make_request("gone")
    scheduler.add(request)
    if is_running:
        compute(scheduler, scheduler.step())

    scheduler.finish(request)

    assert request.phase is Phase.FINISHED
    assert not list(scheduler)
    assert not scheduler.step()
    assert scheduler.pool.num_in_use == 0


@settings(max_examples=60, deadline=None)
@given(
    requests=st.lists(
        st.tuples(st.integers(1, 20), st.integers(0, 2), st.booleans()), min_size=1, max_size=12
    ),
    num_blocks=st.integers(8, 16),
    max_batch_tokens=st.integers(1, 24),
    max_running=st.integers(1, 6),
    num_outputs=st.integers(1, 12),
    kv_dtype=st.sampled_from(["float32", "int4"]),
)
def test_every_request_is_finished_in_the_end_within_every_limit(
    requests: list[tuple[int, int, bool]],
    num_blocks: int,
    max_batch_tokens: int,
    max_running: int,
    num_outputs: int,
    kv_dtype: str,
) -> None:
    """Each has a length and a priority, and comes by handoff or not, one with every step."""
    config = SchedulerConfig(max_batch_tokens=max_batch_tokens, max_running=max_running)
    scheduler = make_scheduler(num_blocks=num_blocks, config=config, kv_dtype=kv_dtype)
    to_come = [
        (make_request(str(index), prompt_len=prompt_len, priority=priority), is_handed_off)
        for index, (prompt_len, priority, is_handed_off) in enumerate(requests)
    ]

    for _ in range(10_000):
        if to_come:
            arrive(scheduler, *to_come.pop(0))
        before = set(scheduler.running)
        chunks = scheduler.step()
        assert sum(chunk.num_tokens for chunk in chunks) <= max_batch_tokens
        assert_nobody_stalls(scheduler, chunks, before)
        assert len({chunk.request for chunk in chunks}) == len(chunks) <= max_running
        for chunk in chunks:
            end = chunk.request.num_computed + chunk.num_tokens
            assert len(scheduler.pool.table(chunk.request.holder)) * 4 >= end
        assert_priorities_are_kept(scheduler, before)
        compute(scheduler, chunks)
        for request in list(scheduler):
            if request.num_sampled >= num_outputs:
                scheduler.finish(request)
        if not to_come and not list(scheduler):
            break

    assert not list(scheduler)
    assert scheduler.pool.num_in_use == 0


def arrive(scheduler: Scheduler, request: Request, is_handed_off: bool) -> None:
    """By handoff if it is one and there are blocks for it."""
    num_free = scheduler.pool.num_available
    num_needed = scheduler.pool.layout.num_blocks_for(len(request.prompt))
    if is_handed_off and len(request.prompt) > 1 and num_free >= num_needed:
        adopt(scheduler, request)
    else:
        scheduler.add(request)


def assert_nobody_stalls(
    scheduler: Scheduler, chunks: Sequence[ScheduledChunk], before: set[Request]
) -> None:
    """Who decodes, or will when a block is full, gets a token in every pass; and so does the first
    prompt that runs."""
    has_chunk = {chunk.request for chunk in chunks}
    still = [request for request in scheduler.running if request in before]
    layout = scheduler.pool.layout
    most_to_decode = layout.block_size if layout.is_int4 else 1
    prompts = [request for request in still if request.num_pending > most_to_decode]
    assert has_chunk.issuperset(r for r in still if r.num_pending <= most_to_decode)
    assert has_chunk.issuperset(prompts[:1])


def assert_priorities_are_kept(scheduler: Scheduler, before: set[Request]) -> None:
    """`before` is what ran before the step."""
    running = list(scheduler.running)
    assert [r.priority for r in running] == sorted(r.priority for r in running)
    still = [request.priority for request in running if request in before]
    gone = [r.priority for r in before if r.phase is Phase.WAITING]
    assert not gone or max(still, default=0) <= min(gone)  # nobody paid for a lesser one


@pytest.mark.parametrize("num_drafted", [4, 8])
def test_a_long_draft_is_verified_as_far_as_a_short_one_where_blocks_run_out(
    num_drafted: int,
) -> None:
    scheduler = make_scheduler(num_blocks=3, block_size=4)
    request = make_request("r", prompt_len=7)
    scheduler.add(request)
    compute(scheduler, scheduler.step())  # its 8 tokens fill two of three blocks

    [chunk] = scheduler.step(drafts={request: range(num_drafted)})

    assert list(chunk.drafted) == [0, 1, 2, 3]
