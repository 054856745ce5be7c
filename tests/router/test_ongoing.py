"""Conversations that go on: where the next turn of each is expected."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan
from random import Random

import pytest
from tests.router.test_policies import prompt

from baton.router.replicas.candidate import Candidate
from baton.router.replicas.candidates import CandidateTable
from baton.router.speeds.speed import ConstantRate
from baton.router.table.ongoing import FIRST_GAP_S, MARGIN_S, MAX_GAPS, NUM_SUPPOSED_BEGUN, Ongoing


def fleet() -> CandidateTable:
    return CandidateTable(Candidate(name, ConstantRate(tokens_per_s=100.0)) for name in "ab")


def turn(table: CandidateTable, session: str, place: int, at_s: float, *, first: bool) -> None:
    """A prompt of 200 tokens, 2 s of work, which is over at once."""
    sent = replace(prompt(round(at_s * 10), 200), session=session, is_first_turn=first)
    table.all[place].book(sent, 0, at_s)
    table.all[place].finished(sent, at_s)


def test_a_conversation_counts_where_it_was_last_until_it_is_over() -> None:
    table = fleet()
    turn(table, "s", 0, 0.0, first=True)
    turn(table, "t", 0, 0.0, first=True)
    turn(table, "", 0, 0.0, first=True)  # nobody's
    assert list(table.all.num_ongoing) == [2, 0]

    turn(table, "s", 1, FIRST_GAP_S, first=False)
    ongoing = table.all.columns.ongoing
    assert list(table.all.num_ongoing) == [1, 1] and ongoing.home("s") is table.all[1]

    over_s = MAX_GAPS * FIRST_GAP_S + MARGIN_S
    ongoing.pass_to(over_s)
    assert list(table.all.num_ongoing) == [1, 1]
    ongoing.pass_to(over_s + 1.0)
    assert list(table.all.num_ongoing) == [0, 1] and ongoing.home("t") is None


def test_what_goes_on_at_a_replica_that_is_gone_goes_on_nowhere() -> None:
    table = fleet()
    gone, stays = table.all
    turn(table, "s", 0, 0.0, first=True)
    turn(table, "t", 1, 0.0, first=True)

    table.remove(gone)

    assert list(table.all.num_ongoing) == [1] and gone.num_ongoing == 0
    turn(table, "s", 0, 1.0, first=False)
    assert stays.num_ongoing == 2
    table.all.columns.ongoing.pass_to(1e6)
    assert (stays.num_ongoing, gone.num_ongoing) == (0, 0)


def test_a_conversation_brings_as_many_turns_as_others_had_and_work_where_it_is() -> None:
    """Two began, of which one had two more turns: the first at home, the second elsewhere."""
    table = fleet()
    turn(table, "s", 0, 0.0, first=True)
    turn(table, "t", 1, 10.0, first=True)
    turn(table, "s", 0, 20.0, first=False)
    ongoing = table.all.columns.ongoing
    assert ongoing.future_s() == pytest.approx(2.0 * 1 / (2 + NUM_SUPPOSED_BEGUN), rel=0.02)

    moved = replace(prompt(9, 9000), session="s", is_first_turn=False)
    table.all[1].book(moved, 0, 30.0)  # 90 s, most of them for what it left behind

    assert ongoing.future_s() == pytest.approx(2.0 * 2 / (2 + NUM_SUPPOSED_BEGUN), rel=0.02)
    assert 1 / ongoing.sent_per_s == pytest.approx(10.0)
    assert ongoing.turn_share == pytest.approx(2 / 4, rel=0.02)


def test_what_conversations_bring_is_supposed_until_many_are_known() -> None:
    table = fleet()
    ongoing = table.all.columns.ongoing
    assert ongoing.future_s(6.0) == 6.0

    for number in range(200):
        turn(table, f"s{number}", number % 2, number / 10, first=True)

    assert ongoing.future_s(6.0) < 0.1  # none of them came back


def test_work_without_a_number_is_not_heard() -> None:
    ongoing, (home, _) = Ongoing(), fleet().all
    for now, work_s in enumerate((2.0, inf, nan, 1.0)):
        ongoing.add_turn("s", home, work_s, float(now), begins=now == 0)

    assert ongoing.long_s == 2.0
    assert ongoing.future_s() == pytest.approx(1.0 * 3 / (1 + NUM_SUPPOSED_BEGUN), rel=0.01)
    assert home.num_ongoing == 1


def test_a_long_prompt_is_one_in_a_hundred_of_those_that_began_or_stayed_there() -> None:
    random, ongoing, (home, other) = Random(1), Ongoing(), fleet().all
    assert ongoing.long_s == inf

    for number in range(20_000):
        seconds = random.random()
        ongoing.add_turn(f"s{number}", home, seconds, float(number), begins=True)
        ongoing.add_turn(f"s{number}", other, 1000.0, number + 0.5, begins=False)

    assert ongoing.long_s == pytest.approx(0.99, abs=0.1)
