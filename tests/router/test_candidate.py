"""When a replica will be free, as a router predicts it and learns better."""

from __future__ import annotations

import pytest

from baton.router.candidate import LATE_S, RECENT_HALF_LIFE_S, Candidate
from baton.router.prompt import Prompt
from baton.router.speed import ConstantRate


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
