"""What a head reads of passes while nothing is drafted, and when drafting begins again."""

from __future__ import annotations

import pytest
from tests.echo_engines import BLOCK_SIZE, VOCAB, make_engine, make_request, run
from tests.echo_head import FEATURES
from tests.engine.speculation.headed_engines import Never, ask, with_head

from baton.engine.passes.echo import echo_output
from baton.engine.speculation.head_drafter import NUM_SHOWN


def test_while_nothing_is_drafted_the_head_keeps_up() -> None:
    budget = Never(3)
    engine = make_engine()
    head = with_head(engine, budget=budget)
    request = make_request("r", range(11), max_tokens=260)
    engine.add(request)
    for _ in range(200):
        engine.step()
    num_read = head.num_pairs
    budget.is_on = True

    run(engine)

    assert num_read > 100
    assert head.num_first == 1
    assert engine.stats.num_accepted == engine.stats.num_drafted > 30


def test_while_drafting_is_paused_nothing_is_read_and_then_what_the_last_passes_gave() -> None:
    budget = Never(3)
    budget.is_paused = True
    engine = make_engine()
    head = with_head(engine, budget=budget)
    request, gone = make_request("r", range(90), max_tokens=260), make_request("gone", range(9))
    for each in (request, gone):
        engine.add(each)
    for _ in range(200):
        engine.step()
    num_read = head.num_pairs
    budget.is_on, budget.is_paused = True, False

    run(engine)

    assert num_read == 0
    assert request.output == echo_output(range(90), 260, VOCAB)
    assert engine.stats.num_accepted == engine.stats.num_drafted > 30
    assert request.num_draft_missing == 90 + 200 - 1 - NUM_SHOWN
    assert gone.num_draft_missing == 0
    assert head.num_first == 1


def test_who_was_to_be_drafted_for_and_is_preempted_instead_may_come_back_in_a_pause() -> None:
    """All pairs of it are in the head's prefix cache, so nothing was shown of it as yet."""
    budget = Never(3)
    budget.is_on = True
    engine = make_engine(features=FEATURES)
    with_head(engine, budget=budget)
    ask(engine, range(12), 20, "before")
    budget.is_on = False
    request = make_request("r", range(12), max_tokens=20)
    engine.add(request)
    while len(request.tokens) < 12 + BLOCK_SIZE + 1:
        engine.step()
    budget.is_on = True
    assert engine.speculation is not None
    engine.speculation.draft([request], engine.features)

    engine._scheduler._preempt(request)
    engine.pool.reset_cache()  # as if others had needed its blocks
    budget.is_on, budget.is_paused = False, True
    run(engine)

    assert request.num_preemptions == 1
    assert request.output == echo_output(range(12), 20, VOCAB)


@pytest.mark.parametrize("num_unseen", [1, 2, 3])
def test_drafts_from_before_a_pause_do_not_fill_the_gap_behind_it(num_unseen: int) -> None:
    budget = Never(3)
    budget.is_on = True
    engine = make_engine()
    head = with_head(engine, errs_every=2, budget=budget)
    request = make_request("r", range(11), max_tokens=150)
    engine.add(request)
    while engine.stats.num_accepted == engine.stats.num_drafted:
        engine.step()
    budget.is_on, budget.is_paused = False, True
    for _ in range(NUM_SHOWN + num_unseen):
        engine.step()
    budget.is_on, budget.is_paused = True, False

    run(engine)

    assert num_unseen <= request.num_draft_missing <= num_unseen + 4
    assert head.num_first == 2
    assert engine.stats.num_accepted > 20
