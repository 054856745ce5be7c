"""A head whose KV has no room for what it is shown."""

from __future__ import annotations

from tests.echo_engines import make_engine, make_request, run
from tests.engine.speculation.headed_engines import Never, ask, head_of, running, show, with_head

from baton.core.sampling import SamplingParams
from baton.engine.request.request import Phase
from baton.engine.speculation.head_drafter import MIN_READ, HeadDrafter
from baton.engine.speculation.head_reading import pair_salt


def test_without_blocks_of_its_own_the_head_says_nothing() -> None:
    engine = make_engine()
    with_head(engine, num_blocks=4)

    request = ask(engine, range(11), 60)

    assert engine.stats.num_drafted < 30 < request.num_sampled


def test_features_that_find_no_block_are_dropped_and_named_for_nobody() -> None:
    budget = Never(3)
    engine = make_engine()
    with_head(engine, num_blocks=20, budget=budget)
    assert engine.speculation is not None
    drafter = engine.speculation.reader
    assert isinstance(drafter, HeadDrafter)
    first, second = make_request("1", range(70)), make_request("2", range(100, 111))
    first.sampling = second.sampling = SamplingParams(temperature=0.0, max_tokens=300)
    engine.add(first)
    engine.add(second)
    for _ in range(200):
        engine.step()
        assert all(len(reading.rows) <= MIN_READ + 1 for reading in drafter._readings.values())

    engine.abort("1")
    budget.is_on = True
    run(engine)

    assert second.num_draft_missing > MIN_READ
    assert drafter.num_missing >= first.num_draft_missing + second.num_draft_missing
    assert engine.stats.num_accepted == engine.stats.num_drafted > 30
    assert not drafter._pool.num_cached(second.tokens[1:], pair_salt(second))


def test_a_head_without_blocks_takes_those_of_who_was_preempted() -> None:
    drafter = head_of(num_blocks=25)
    preempted, other = running("1", 90), running("2", 90, first=200)
    show(drafter, preempted, 0, 90)
    preempted.phase = Phase.WAITING

    show(drafter, other, 0, 80)
    show(drafter, other, 80, 10)
    assert other.num_draft_missing == 79
    assert not drafter._pool.table(preempted.holder)

    (draft,) = drafter.propose([other], 3)
    assert len(draft.tokens) == 3


def test_a_prompt_that_the_head_is_never_shown_takes_none_of_its_blocks() -> None:
    drafter = head_of(num_blocks=4)
    request = running("r", 401)
    show(drafter, request, 400, 1)
    request.append(7)

    (draft,) = drafter.propose([request], 3)

    assert len(draft.tokens) == 3
    assert drafter._pool.num_in_use == 1
