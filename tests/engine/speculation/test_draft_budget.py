"""How much is drafted on machines whose steps take known times, where drafts are so often right."""

from __future__ import annotations

import pytest
from tests.engine.speculation.drafting_machines import (
    Loop,
    Machine,
    compute_bound,
    demo_time,
    memory_bound,
)

from baton.engine.request.step_report import StepReport
from baton.engine.speculation.draft_budget import AdaptiveBudget
from baton.engine.speculation.pause import MAX_CREDIT


def test_rows_that_are_nearly_free_are_filled_with_drafts() -> None:
    assert Machine(1, memory_bound, 0.8).run(2000) > 3.5
    assert Machine(16, memory_bound, 0.8).run(2000) > 2.5


def test_where_rows_cost_what_they_bring_nothing_is_lost() -> None:
    for num_requests in (1, 8, 64):
        for share in (0.0, 0.3, 0.7):
            assert Machine(num_requests, compute_bound, share).run(3000) > 0.99


def test_a_draft_model_that_takes_too_long_is_left_alone() -> None:
    assert Machine(1, memory_bound, 0.6, draft_s=20e-3).run(4000) > 0.99
    assert Machine(1, memory_bound, 0.6, draft_s=0.5e-3).run(2000) > 1.5


def test_drafts_that_are_never_right_are_paused_and_taken_up_again_once_they_are() -> None:
    """Although each is thought to be right: time alone tells."""
    machine = Machine(4, lambda requests, drafted: 10e-3 + 0.2e-3 * drafted, 0.9, hoped=0.9)
    assert machine.run(1000) > 1.5

    machine.share_right = 0.0
    while not machine.budget.is_paused:
        machine.run(1)
    assert machine.run(8000) > 0.99
    assert machine.budget.num_pauses > 1

    machine.share_right = 0.9
    machine.run(6000)
    assert machine.run(1000) > 1.5


@pytest.mark.parametrize("draft_s", [0.0, 0.5e-3])
def test_drafts_that_collapse_are_tried_at_half_a_percent_of_the_time_until_they_recover(
    draft_s: float,
) -> None:
    loop = Loop(4, memory_bound, 0.9, draft_s)
    assert loop.run(200) > 1.2

    loop.share_right = 0.0
    loop.run(1000)  # until what was saved is lost, as far as it may be
    assert loop.speculation.is_collapsed
    assert loop.run(3000) > 0.993

    loop.share_right = 0.9
    loop.run(2000)
    assert loop.run(200) > 1.5
    assert not loop.speculation.is_collapsed


def test_the_time_in_which_prompts_are_read_is_not_what_a_draft_takes() -> None:
    loop = Loop(1, memory_bound, 0.9, 0.5e-3)
    loop.reading_s = 30e-3

    loop.run(40)

    assert loop.run(40) > 2


def test_reading_what_came_with_prompts_ends_no_drafts_that_win_and_prolongs_pauses_of_others() -> (
    None
):
    good, bad = Loop(1, memory_bound, 0.9, 0.5e-3), Loop(1, memory_bound, 0.0, 0.5e-3)
    good.recall_s = bad.recall_s = 40e-3

    good.run(500)
    assert good.num_drafted > 1500
    bad.run(200)
    assert bad.run(10_000) > 0.99


def test_a_deep_draft_that_takes_no_longer_than_a_short_one_is_made_deep() -> None:
    """One token would not pay for the pass that drafts it; eight do."""
    assert Loop(1, memory_bound, 0.8, 9e-3, at_once=True).run(1000) > 1.7
    assert Loop(1, memory_bound, 0.8, 9e-3).run(3000) > 0.99


@pytest.mark.parametrize(
    ("num_requests", "share", "draft_s"), [(1, 0.0, 0.1e-3), (16, 0.3, 0.8e-3), (16, 0.7, 0.8e-3)]
)
def test_a_trial_of_drafts_that_lose_costs_less_than_a_fortieth_of_a_short_answer(
    num_requests: int, share: float, draft_s: float
) -> None:
    loop = Loop(num_requests, demo_time, share, draft_s, at_once=True)
    loop.drafter.is_costly = False
    loop.run(5)

    assert min(loop.run(128) for _ in range(16)) > 0.975
    assert loop.speculation.metrics()["speculation_pauses_total"] > 2


def test_an_unlucky_answer_is_paid_from_what_others_saved_and_leaves_the_next_its_drafts() -> None:
    """Shares as of the demo on code: text that repeats itself, and text that does not."""
    loop = Loop(1, demo_time, 0.0)
    loop.answer("first", 0.9)
    shares = [0.9, 0.8, 0.0, 0.9, 0.7, 0.0, 0.0, 0.8] * 4

    times = [loop.answer(str(number), share) for number, share in enumerate(shares)]

    lucky = [won for won, share in zip(times, shares, strict=True) if share]
    assert sum(lucky) / len(lucky) > 1.8
    assert min(lucky) > 1.15
    assert min(times) > 0.85


def test_what_was_saved_is_lost_but_once() -> None:
    loop = Loop(1, demo_time, 0.0)
    for number in range(16):
        loop.answer(f"lucky {number}", 0.9)
    unlucky = [loop.answer(f"unlucky {number}", 0.0) for number in range(128)]

    assert sum(1 / one - 1 for one in unlucky) * 127 < MAX_CREDIT + 2 * 0.005 * 128 * 127
    assert min(unlucky[-64:]) > 0.96


def test_drafts_that_can_win_little_are_tried_seldom() -> None:
    """All right they would win a tenth: they lose a twentieth as much as what could win a lot."""
    loop = Loop(1, lambda _, drafted: 10e-3 + 1e-3 * drafted, 0.0, 7e-3)
    loop.run(100)

    assert loop.run(20_000) > 0.9985


def test_a_draft_model_that_becomes_quick_is_noticed() -> None:
    loop = Loop(1, memory_bound, 0.9, 20e-3)
    assert loop.run(3000) > 0.99

    loop.draft_s = 0.5e-3
    loop.run(8000)
    assert loop.run(200) > 1.5


def test_a_pause_passes_while_steps_are_launched_ahead_and_nobody_is_asked() -> None:
    loop = Loop(4, memory_bound, 0.0)
    while not loop.speculation.is_paused:
        loop.step()

    num_steps = 0
    while loop.speculation.is_paused and num_steps < 10_000:
        loop.speculation.learn(StepReport(num_tokens=4, num_requests=4), 10e-3)
        num_steps += 1

    assert 30 < num_steps < 10_000


def test_a_first_pass_that_compiles_says_nothing_of_the_others() -> None:
    loop = Loop(1, memory_bound, 0.9)
    while not loop.num_drafted:
        loop.step_time = lambda _, drafted: 10e-3 + (5.0 if drafted else 0.0)
        loop.step()
    loop.step_time = memory_bound

    assert loop.run(10) > 2


def test_a_method_that_finds_nothing_is_asked_less_and_keeps_what_it_learnt() -> None:
    loop = Loop(8, memory_bound, 0.9, 0.02e-3)
    loop.drafter.is_costly = False
    loop.run(500)
    loop.drafter.finds = False
    assert loop.run(5000) > 0.99

    loop.drafter.finds = True
    loop.run(500)
    assert loop.run(200) > 1.5
    assert not loop.speculation.is_collapsed


def test_drafts_beside_prompts_are_judged_by_what_rows_cost_there() -> None:
    """Each step computes part of a prompt, so that rows cost what its tokens do."""
    loop = Loop(2, compute_bound, 0.0)
    loop.run(20)
    loop.num_prompt_tokens = 30
    loop.run(300)

    assert loop.run(3000) > 0.99
    assert loop.speculation.metrics()["speculation_pauses_total"] > 0


def test_steps_without_drafts_that_become_quicker_end_drafts_that_do_not() -> None:
    machine = Machine(1, lambda _, drafted: 30e-3 if drafted else 25e-3, 0.9)
    assert machine.run(2000) > 1.5

    machine.step_time = lambda _, drafted: 30e-3 if drafted else 3e-3
    machine.run(4000)
    assert machine.run(4000) > 0.97


@pytest.mark.parametrize(("gain", "num_plain"), [(1.2, 24), (1.8, 6)])
def test_where_drafts_win_little_steps_without_are_measured_often(
    gain: float, num_plain: int
) -> None:
    """One token is drafted in each step, and right."""
    budget = AdaptiveBudget(1)

    def drafts() -> bool:
        if not budget.begins(1):
            budget.learn(StepReport(num_tokens=1, num_requests=1), 10e-3)
            return False
        budget.depth(1, 1, None)
        report = StepReport(num_tokens=1, num_requests=1, num_drafted=1, num_accepted=1)
        budget.learn(report, 20e-3 / gain)
        return True

    for _ in range(200):
        drafts()

    assert sum(not drafts() for _ in range(400)) == pytest.approx(num_plain, abs=2)


def test_steps_of_a_clock_that_stands_still_are_learnt_from() -> None:
    budget = AdaptiveBudget(1)

    for _ in range(40):
        num_drafted = budget.depth(1, 1, None) if budget.begins(1) else 0
        report = StepReport(num_tokens=1, num_requests=1, num_drafted=num_drafted)
        budget.learn(report, 0.0)

    assert num_drafted == 1


def test_of_all_drafts_as_many_rows_are_taken_as_pay() -> None:
    """Half of the rows are hopeless: only the others are run."""
    machine = Machine(8, lambda requests, drafted: 10e-3 + 0.5e-3 * drafted, 0.9)
    machine.run(500)
    probabilities = [0.9] * 8 + [0.05] * 8

    assert machine.budget.num_rows(8, probabilities) == 8


def test_a_draft_ends_where_the_next_row_needs_a_tile_of_its_own() -> None:
    """On a CPU eight rows are multiplied at once: the request's own, and those of seven drafts."""
    machine = Machine(1, lambda _, drafted: 10e-3 + 0.2e-3 * drafted + 5e-3 * (drafted > 7), 0.8)
    machine.run(2000)

    assert machine.budget.num_rows(1, [0.8**at for at in range(1, 9)]) == 7
    assert machine.run(2000) > 3.2
