from __future__ import annotations

from baton.proto.answer_time import HALF_LIFE_S, MARGIN, MOST_S, AnswerTime


def test_a_peer_that_is_slow_to_answer_is_given_a_margin_above_that() -> None:
    it = AnswerTime(1.0)

    it.answered(0.01, now=0.0)
    assert it.allowed_s(0.0) == 1.0

    it.answered(0.8, now=0.0)
    assert it.allowed_s(0.0) == MARGIN * 0.8


def test_each_answer_that_came_too_late_doubles_what_is_allowed_up_to_a_limit() -> None:
    it = AnswerTime(1.0)

    allowed_s = []
    for _ in range(4):
        it.answered(60.0, now=0.0)
        allowed_s.append(it.allowed_s(0.0))

    assert allowed_s == [2.0, 4.0, MOST_S, MOST_S]


def test_what_was_added_is_forgotten_as_time_goes_by() -> None:
    it = AnswerTime(1.0)
    it.answered(60.0, now=10.0)

    assert it.allowed_s(10.0 + HALF_LIFE_S) == 1.5
    it.answered(0.01, now=10.0 + HALF_LIFE_S)
    assert it.allowed_s(10.0 + 2 * HALF_LIFE_S) == 1.25
