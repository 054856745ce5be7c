"""When a replica will be free, as a router predicts it and learns better."""

from __future__ import annotations

import pytest

from baton.core.step_times import StepTimes
from baton.router.prompt import Prompt
from baton.router.replicas.candidate import LATE_S, Candidate
from baton.router.replicas.candidates import CandidateTable
from baton.router.speeds.speed import ConstantRate, MeasuredSpeed
from baton.router.table.columns import RECENT_HALF_LIFE_S


def test_what_comes_later_than_predicted_moves_all_behind_it() -> None:
    """Two prompts of 4 s each; the first takes 6 s, and is overdue before that is known."""
    candidate = Candidate("a", ConstantRate(tokens_per_s=100.0))
    first, second = (Prompt(number=number, num_tokens=400, arrived_s=0.0) for number in (1, 2))
    candidate.book(first, 0, now=0.0)
    candidate.book(second, 0, now=0.0)

    assert [candidate.busy_s(now) for now in (0.0, 4.0)] == [8.0, 4.0]
    assert (
        candidate.busy_s(5.0) == 3.0 + 1.0 - LATE_S
    )  # late for a second, it may be late for another
    candidate.finished(first, 6.0)
    assert candidate.busy_s(6.0) == 4.0 and candidate.overdue_s(6.0) == 0.0
    candidate.finished(second, 9.0)  # sooner than thought
    assert candidate.busy_s(9.0) == 0.0


def test_work_that_was_sent_lately_counts_half_after_a_half_life() -> None:
    candidate = Candidate("a", ConstantRate(tokens_per_s=100.0))
    candidate.book(Prompt(number=1, num_tokens=400, arrived_s=0.0), 100, now=0.0)

    assert candidate.recent(0.0) == (3.0, 1.0)
    assert candidate.recent(RECENT_HALF_LIFE_S) == pytest.approx((1.5, 0.5))


def test_a_prompt_taken_back_makes_nobody_before_it_late() -> None:
    """10 s each: the second is cancelled at once, the third follows the first."""
    candidate = Candidate("a", ConstantRate(tokens_per_s=100.0))
    prompts = [Prompt(number=number, num_tokens=1000, arrived_s=0.0) for number in range(3)]
    for prompt in prompts:
        candidate.book(prompt, 0, now=0.0)

    candidate.finished(prompts[1], 1.0, is_taken_back=True)

    assert (candidate.busy_s(1.0), candidate.overdue_s(1.0)) == (19.0, 0.0)
    candidate.finished(prompts[0], 10.0)
    assert candidate.busy_s(10.0) == 10.0
    candidate.finished(prompts[2], 20.0)
    assert candidate.busy_s(20.0) == 0.0


def test_a_replica_whose_tokens_come_is_not_late_for_one_that_is_held_up_elsewhere() -> None:
    """4 s each: the first one's decode replica passes no token on, the second's does."""
    candidate = Candidate("a", ConstantRate(tokens_per_s=100.0))
    table = CandidateTable((candidate,))
    held_up, passed_on, cancelled = (
        Prompt(number=number, num_tokens=400, arrived_s=0.0) for number in range(3)
    )
    for prompt in (held_up, passed_on, cancelled):
        candidate.book(prompt, 0, now=0.0)

    candidate.finished(passed_on, 9.0)
    candidate.finished(cancelled, 11.0, is_taken_back=True)

    assert candidate.overdue_s(9.0) == 0.0
    assert candidate.overdue_s(12.0) == pytest.approx(3.0 - LATE_S)
    assert table.all.overdue_s(12.0).tolist() == [candidate.overdue_s(12.0)]


def test_what_a_replica_says_it_has_queued_counts_by_the_token() -> None:
    """Not as one long prompt, whose attention grows with its square."""
    times = StepTimes(token_s=0.001, pair_s=1e-6, num_prompt_steps=9)
    candidate = Candidate("a", MeasuredSpeed(times=times, max_chunk=512))

    candidate.observe(5_120, 0, now=0.0)
    ten = candidate.busy_s(0.0)
    candidate.observe(51_200, 0, now=0.0)

    assert candidate.busy_s(0.0) == pytest.approx(10 * ten)


def test_what_is_sent_behind_others_prompts_is_expected_behind_them() -> None:
    """A gateway that counted its own prompts alone would think a replica overdue that computes
    another gateway's."""
    candidate = Candidate("a", ConstantRate(tokens_per_s=1000.0))
    candidate.observe(4_000, 0, now=0.0)

    candidate.book(Prompt(number=0, num_tokens=1000, arrived_s=0.0), 0, now=1.0)

    assert candidate.busy_s(1.0) == pytest.approx(4.0)
    assert candidate.overdue_s(4.5) == 0.0
    candidate.observe(0, 0, now=4.9)
    assert candidate.busy_s(4.9) == pytest.approx(0.1)


def test_others_prompts_that_were_expected_and_are_gone_keep_nobody_away() -> None:
    """Another gateway died, whose hundred seconds of work were before the second prompt; the first
    is held up elsewhere."""
    candidate = Candidate("a", ConstantRate(tokens_per_s=1000.0))
    held_up, passed_on = (Prompt(number=n, num_tokens=1000, arrived_s=0.0) for n in range(2))
    candidate.book(held_up, 0, now=0.0)
    candidate.observe(101_000, 0, now=0.0)
    candidate.book(passed_on, 0, now=0.0)
    assert candidate.busy_s(0.0) == 102.0

    candidate.observe(1_000, 0, now=0.5)
    candidate.finished(passed_on, 2.0)

    assert candidate.busy_s(2.0) == pytest.approx(0.0)
