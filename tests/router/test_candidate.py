"""When a replica will be free, as a router predicts it and learns better."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from baton.router.candidate import RECENT_HALF_LIFE_S, Candidate
from baton.router.prompt import Prompt


@dataclass(frozen=True)
class Rate:
    def prefill_s(self, num_tokens: int, num_cached: int) -> float:
        return (num_tokens - num_cached) / 100.0


def test_what_comes_later_than_predicted_moves_all_behind_it() -> None:
    """Two prompts of 4 s each; the first takes 6 s, and is overdue before that is known."""
    candidate = Candidate("a", Rate())
    first, second = (Prompt(number=number, num_tokens=400, arrived_s=0.0) for number in (1, 2))
    candidate.book(first, 0, now=0.0)
    candidate.book(second, 0, now=0.0)

    assert [candidate.busy_s(now) for now in (0.0, 4.0)] == [8.0, 4.0]
    assert candidate.busy_s(5.0) == 3.0 + 1.0  # late for a second, it may be late for another
    candidate.finished(first, 6.0)
    assert candidate.busy_s(6.0) == 4.0 and candidate.overdue_s(6.0) == 0.0
    candidate.finished(second, 9.0)  # sooner than thought
    assert candidate.busy_s(9.0) == 0.0


def test_work_that_was_sent_lately_counts_half_after_a_half_life() -> None:
    candidate = Candidate("a", Rate())
    candidate.book(Prompt(number=1, num_tokens=400, arrived_s=0.0), 100, now=0.0)

    assert candidate.recent_s(0.0) == 3.0
    assert candidate.recent_s(RECENT_HALF_LIFE_S) == pytest.approx(1.5)
