"""Real models under any schedule: each request draws the tokens that it draws alone.

Tiny random models rank their tokens clearly, but half of the requests draw with noise, so that a
difference in the last bits of their logits would be seen, too, sooner or later.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.scheduled_models import (
    MAX_LEN,
    WAYS,
    Schedule,
    Served,
    Wish,
    check,
    greedy,
    outcome,
    tokens_of,
)
from tests.far_apart import with_wide

from baton.core.sampling import FinishReason, SamplingParams
from baton.engine.config import SchedulerConfig
from baton.kernels.cpu.library import library

pytestmark = pytest.mark.skipif(library() is None, reason="no compiled operators here")


FAR_APART = {
    "float32, blocks of 1",
    "windows, bfloat16",
    "int8",
    "KV in int4, windows",
    "chosen tokens",
    "compressed entries",
}


@pytest.fixture(scope="module", params=with_wide(WAYS, FAR_APART))
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    return Served(WAYS[request.param], tmp_path_factory.mktemp("model"))


@st.composite
def samplings(draw: st.DrawFn) -> SamplingParams:
    max_tokens = draw(st.integers(1, 20))
    if draw(st.booleans()):
        return greedy(max_tokens, ignore_eos=draw(st.booleans()))
    return SamplingParams(
        temperature=draw(st.sampled_from([0.7, 8.0])),
        top_k=draw(st.sampled_from([0, 5])),
        top_p=draw(st.sampled_from([1.0, 0.9])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.3])),
        seed=draw(st.integers(0, 2**64 - 1)),
        choice=draw(st.integers(0, 2)),
        max_tokens=max_tokens,
        ignore_eos=True,
    )


@st.composite
def wishes(draw: st.DrawFn, block_size: int) -> Wish:
    """A beginning that others may have, too, then something of its own; often whole blocks."""
    shared = tokens_of(draw(st.integers(0, 1)), draw(st.sampled_from([0, 0, 7, 16, 33, 64])))
    at_edges = [n + d for n in (block_size, 2 * block_size) for d in (-1, 0, 1)]
    own = draw(st.one_of(st.integers(1, 30), st.sampled_from([n for n in at_edges if n > 0])))
    prompt = (shared + tokens_of(draw(st.integers(2, 9)), own))[: MAX_LEN - 1]
    return Wish(
        prompt=tuple(prompt),
        sampling=draw(samplings()),
        comes_at=draw(st.integers(0, 15)),
        leaves_after=draw(st.one_of(st.none(), st.none(), st.integers(0, 12))),
        priority=draw(st.sampled_from([0, 0, 1])),
    )


@st.composite
def schedules(draw: st.DrawFn, block_size: int) -> Schedule:
    return Schedule(
        wishes=draw(st.lists(wishes(block_size), min_size=2, max_size=9)),
        spare_tokens=draw(st.sampled_from([0, 0, 20, 60, 700])),
        scheduler=SchedulerConfig(
            max_batch_tokens=draw(st.sampled_from([5, 17, 64, 2048])),
            max_running=draw(st.sampled_from([2, 5, 64])),
            prefill_chunk=draw(st.sampled_from([None, None, 7])),
            async_scheduling=draw(st.sampled_from(["auto", "on"])),
        ),
        num_threads=draw(st.sampled_from([1, 2])),
        max_drafted=draw(st.sampled_from([0, 2, 20])),
    )


@given(data=st.data())
@settings(max_examples=5, deadline=None)
def test_each_request_draws_what_it_draws_alone(served: Served, data: st.DataObject) -> None:
    check(served, data.draw(schedules(served.kept.block_size)))


def test_a_crowd_computed_in_one_pass_draws_what_each_draws_alone(served: Served) -> None:
    """More requests than a tape is made for by default, of all lengths, in one pass."""
    crowd = [
        Wish(prompt=tuple(tokens_of(i % 5, 1 + i % 11)), sampling=greedy(3, ignore_eos=True))
        for i in range(320)
    ]
    schedule = Schedule(
        wishes=crowd,
        spare_tokens=320 * served.kept.block_size * 10,
        scheduler=SchedulerConfig(max_running=320),
    )

    engine = check(served, schedule)

    assert engine.stats.num_steps == 3


def test_drafts_that_are_mostly_right_change_no_token(served: Served) -> None:
    """Blocks are short for all of them, so that some are preempted with drafts behind them."""
    crowd = [
        Wish(
            prompt=tuple(tokens_of(i, 12 + 3 * i)),
            sampling=greedy(24, ignore_eos=True)
            if i % 2
            else SamplingParams(
                temperature=1.5,
                top_p=0.9,
                repetition_penalty=1.2,
                seed=i,
                max_tokens=24,
                ignore_eos=True,
            ),
            comes_at=2 * i,
        )
        for i in range(5)
    ]
    schedule = Schedule(
        wishes=crowd, spare_tokens=40, scheduler=SchedulerConfig(max_batch_tokens=40), max_drafted=5
    )

    engine = check(served, schedule)

    assert engine.stats.num_drafted > engine.stats.num_accepted > 0


@pytest.mark.parametrize("chunk", [None, 7])
def test_prompts_that_end_with_a_block_or_near_it_are_found_again(
    served: Served, chunk: int | None
) -> None:
    block_size = served.kept.block_size
    scheduler = SchedulerConfig(prefill_chunk=chunk)
    edges = [n * block_size + d for n in (1, 2) for d in (-1, 0, 1)]
    lengths = sorted({length for length in edges if 0 < length < MAX_LEN - 2})
    again = [
        Wish(
            prompt=tuple(tokens_of(5, length)),
            sampling=greedy(2 * block_size % 20 + 2, ignore_eos=True),
            comes_at=comes_at,
        )
        for comes_at in (0, 60)
        for length in lengths
    ]

    schedule = Schedule(wishes=again, spare_tokens=20 * MAX_LEN, scheduler=scheduler)
    _, requests = outcome(served, schedule)

    assert [request.output for request in requests] == [served.alone(wish) for wish in again]
    for request in requests[len(lengths) :]:
        assert request.num_cached == (len(request.prompt) - 1) // block_size * block_size


def test_a_context_is_right_up_to_its_last_token(served: Served) -> None:
    """Prompts that leave room for some tokens, for two, and for the last one alone."""
    full = [
        Wish(prompt=tuple(tokens_of(3, length)), sampling=greedy(MAX_LEN, ignore_eos=True))
        for length in (MAX_LEN - 1, MAX_LEN - 2, MAX_LEN - 17)
    ]

    engine, requests = outcome(
        served, Schedule(wishes=full, spare_tokens=0, scheduler=SchedulerConfig())
    )

    for wish, request in zip(full, requests, strict=True):
        assert len(request.tokens) == MAX_LEN
        assert engine.finish_reason(request) is FinishReason.LENGTH
        assert request.output == served.alone(wish)


def test_what_was_preempted_or_found_in_the_cache_goes_on_as_if_undisturbed(served: Served) -> None:
    """Half of them draw with noise; the beginnings are shared, the pool holds two or three."""
    crowd = [
        Wish(
            prompt=(*tokens_of(0, 32 if i % 3 else 64), *tokens_of(i, 1 + i)),
            sampling=greedy(20, ignore_eos=True)
            if i % 2
            else SamplingParams(temperature=2.0, seed=i, max_tokens=20, ignore_eos=True),
            comes_at=i // 4,
        )
        for i in range(12)
    ]
    schedule = Schedule(wishes=crowd, spare_tokens=30, scheduler=SchedulerConfig(prefill_chunk=23))

    engine = check(served, schedule)

    assert engine.stats.num_preempted > 0 or served.kept.block_size == 64
    assert engine.stats.num_tokens_cached > 0
