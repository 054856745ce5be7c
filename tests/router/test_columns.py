"""Decisions over columns against the plain formulas, one replica after the other."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.core.step_times import StepTimes
from baton.router.cache.heat import Heat
from baton.router.fairness.turns import Turns
from baton.router.policies import cost_terms
from baton.router.policies.cost import (
    BASE_PRICE,
    DEFAULTS,
    FEW_BEGUN,
    FEW_TURNS,
    HASTE,
    MANY,
    MANY_TURNS,
    SPARE,
    SUPPOSED,
    Cost,
)
from baton.router.policies.routing_policy import PrefixHits, cheapest
from baton.router.prompt import Prompt, mix, mixed
from baton.router.replicas.candidate import Candidate, Waiting
from baton.router.replicas.candidates import CandidateTable
from baton.router.speeds.speed import ConstantRate, MeasuredSpeed
from baton.router.table.columns import RECENT_HALF_LIFE_S

NOW = 100.0
SPEEDS = (
    ConstantRate(tokens_per_s=700.0),
    MeasuredSpeed(
        times=StepTimes(constant_s=0.01, token_s=0.001, pair_s=1e-7, request_s=0.002),
        max_chunk=512,
        slowness=1.5,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What has happened to one replica."""

    speed: int
    sent: list[tuple[float, int]]
    """Before now, in seconds, and tokens."""
    is_oldest_over: bool
    in_line: list[tuple[float, float]]
    """Due, and work."""
    num_queued_tokens: int
    num_running: int
    num_held: int
    num_turns: list[int]
    """Of each conversation that goes on there."""


tokens = st.integers(1, 5000)
facts = st.builds(
    Facts,
    speed=st.integers(0, 1),
    sent=st.lists(st.tuples(st.floats(0, 1500), tokens), max_size=16),
    is_oldest_over=st.booleans(),
    in_line=st.lists(
        st.tuples(st.floats(80, 140) | st.floats(195, 260), st.floats(0.1, 60)), max_size=4
    ),
    num_queued_tokens=st.integers(0, 3000),
    num_running=st.integers(0, 4),
    num_held=st.integers(0, 6000),
    num_turns=st.lists(st.integers(1, 4), max_size=3),
)


NUM_BEGUN = 12
"""Conversations lately: several for each of a few replicas, two for each of many."""


def asks(number: int, num_tokens: int, names: str = "") -> Prompt:
    return Prompt(
        number=number,
        num_tokens=num_tokens,
        arrived_s=NOW - 1,
        names=tuple(letter.encode() * 16 for letter in names),
        block_size=100,
        draw=number * 0x9E3779B97F4A7C15,
    )


def candidate(name: str, known: Facts) -> Candidate:
    made = Candidate(name, SPEEDS[known.speed])
    sent = [asks(number, num_tokens) for number, (_, num_tokens) in enumerate(known.sent)]
    for prompt, before_s in zip(
        sent, sorted((s for s, _ in known.sent), reverse=True), strict=True
    ):
        made.book(prompt, 0, NOW - before_s)
    if sent and known.is_oldest_over:
        made.finished(sent[0], NOW)
    made.observe(known.num_queued_tokens, known.num_running, NOW)
    for number, (due_s, work_s) in enumerate(known.in_line):
        made.add(Waiting(asks(number, 100), made, work_s, due_s))
    return made


def plain_costs(
    prompt: Prompt, candidates: list[Candidate], held: list[int], transfer_s: float | None
) -> list[float]:
    """The formula of `policies/cost.py`, by the books of each candidate."""
    turns, heat = taught(prompt)
    num_waiting = sum(len(one.waiting) for one in candidates)
    in_line = num_waiting / len(candidates)
    price = BASE_PRICE + DEFAULTS.scarcity * in_line
    charge = heat.charge(prompt, len(candidates), NOW)
    recent = [one.recent(NOW) for one in candidates]
    ongoing = candidates[0].columns.ongoing
    num_others = [one.num_ongoing - (one is ongoing.home(prompt.session)) for one in candidates]
    future_s = ongoing.future_s(SUPPOSED * turns.typical_s)
    brought = [
        seconds + others * future_s for (seconds, _), others in zip(recent, num_others, strict=True)
    ]
    mean_s = sum(brought) / len(brought)
    mean_sent = sum(count for _, count in recent) / len(recent)
    few = min(mean_sent / MANY, 1.0) * prompt.is_first_turn
    busy = min(sum(s for s, _ in recent) / len(recent) * math.log(2) / RECENT_HALF_LIFE_S, 1.0)
    bound = (ongoing.turn_share - FEW_TURNS) / (MANY_TURNS - FEW_TURNS)
    bound = min(max(bound, 0.0), 1.0)
    coming = ongoing.sent_per_s / len(candidates) / 2 * (bound + (1 - bound) * busy)
    begun = NUM_BEGUN * 2 ** ((prompt.arrived_s - NOW) / RECENT_HALF_LIFE_S) / len(candidates)
    evenness = DEFAULTS.evenness * min(max(begun - 1.0, 0.0) / FEW_BEGUN, 1.0)
    num_missing = NUM_BEGUN * math.log(2) / RECENT_HALF_LIFE_S * max(NOW - prompt.arrived_s, 0.0)
    haste = HASTE * min(max(2 * num_missing / len(candidates) - 1, 0.0), 1.0)
    costs = []
    for one, num_held, brought_s in zip(candidates, held, brought, strict=True):
        cached = min(num_held, prompt.num_tokens - 1)
        work_s = one.speed.prefill_s(prompt.num_tokens, cached)
        own = charge.total - float(charge.before(np.array(float(cached))))
        due_s = turns.due_s(prompt, work_s, sum(waiting.work_s for waiting in one.waiting), NOW)
        num_behind = sum(waiting.due_s > due_s for waiting in one.waiting)
        brings_s = work_s + future_s
        balance = brought_s / mean_s - 1.0 if mean_s else 0.0
        over = max(balance + brings_s / (2 * mean_s), 0.0) if mean_s else 0.0
        wait_s = one.busy_s(NOW) + one.ahead_s(due_s)
        moved_s = 0.0 if transfer_s is None else 1.5 * transfer_s
        late_s = max(NOW + wait_s + moved_s + work_s - prompt.due_s, 0.0)
        surplus = evenness * (over + haste * max(over - SPARE, 0.0)) * brings_s
        costs.append(
            wait_s
            + moved_s
            + price * work_s * own / (prompt.num_tokens - cached)
            + (num_behind + one.num_running + coming * work_s) * work_s
            + DEFAULTS.balance * turns.typical_s * few * balance / (1 + in_line)
            + surplus / (1 + in_line)
            + late_s
            + min(4 * late_s, prompt.due_s - prompt.arrived_s)
        )
    return costs


def taught(prompt: Prompt) -> tuple[Turns, Heat]:
    turns, heat = Turns(), Heat()
    for _ in range(NUM_BEGUN):
        turns.observe(SPEEDS[0].prefill_s(prompt.num_tokens, 0))
        heat.observe(prompt, prompt.arrived_s)
    return turns, heat


@settings(max_examples=60)
@given(fleet=st.lists(facts, min_size=1, max_size=6), num_tokens=tokens, data=st.data())
def test_costs_over_columns_are_those_of_the_plain_formula(
    fleet: list[Facts], num_tokens: int, data: st.DataObject
) -> None:
    """Of all replicas, and of some of them; to the last bit by whatever is compiled."""
    every = [candidate(str(number), known) for number, known in enumerate(fleet)]
    table, prompt, policy = CandidateTable(every), asks(7, num_tokens, "abcd"), Cost()
    for number, (one, known) in enumerate(zip(every, fleet, strict=True)):
        for at, num_turns in enumerate(known.num_turns):
            name = "asks" if number == at == 0 else f"{number}-{at}"
            for turn in range(num_turns):
                at_s, begins = NOW - 20 + 4 * turn + at, turn == 0
                table.all.columns.ongoing.add_turn(name, one, 0.5 + at, at_s, begins=begins)
    prompt = replace(prompt, session="asks")
    for _ in range(NUM_BEGUN):
        policy.placed(prompt, Candidate("first", SPEEDS[0]))
    places = data.draw(st.sets(st.integers(0, len(fleet) - 1), min_size=1).map(sorted))
    continues = bool(fleet[0].num_turns)
    due_s = data.draw(st.sampled_from([math.inf, NOW - 0.5, NOW + 1.5, NOW + 200]))
    prompt = replace(prompt, is_first_turn=not continues, due_s=due_s)
    transfer = data.draw(st.none() | st.just(0.7))
    for some in (range(len(fleet)), places):
        held = [fleet[place].num_held for place in some]
        candidates = table.all if some != places else table.at(np.array(places))
        has = PrefixHits(np.array(held, float))
        if transfer is not None:  # all tokens but those that each has are fetched
            fetched, times = np.array(held, float), np.full(len(held), transfer)
            has = PrefixHits(np.zeros(len(held)), fetched, times, times / 2)
        found = policy.costs(prompt, candidates, has, NOW)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cost_terms, "library_without_torch", lambda: None)
            defined = policy.costs(prompt, candidates, has, NOW)
        assert found.terms is not None and defined.terms is not None
        assert np.array_equal(found.terms, defined.terms)  # compiled or not: the same bits
        assert np.array_equal(found.total, defined.total)
        plain = plain_costs(prompt, [every[place] for place in some], held, transfer)
        assert found.total == pytest.approx(plain)
        chosen = cheapest(prompt, candidates, found)
        assert plain[chosen] == pytest.approx(min(plain))
        assert candidates[chosen] is every[some[chosen]]


@given(draws=st.lists(st.integers(0, 2**64 - 1), min_size=1), other=st.integers(0, 2**64 - 1))
def test_many_draws_are_mixed_as_each_is(draws: list[int], other: int) -> None:
    found = mix(np.array(draws, np.uint64), other).tolist()

    assert found == [mixed(draw, other) for draw in draws]


def test_a_candidate_that_leaves_takes_its_row_and_its_line_along() -> None:
    every = [candidate(name, LINED) for name in "abc"]
    table = CandidateTable(every)

    table.remove(every[0])

    assert list(table.all) == every[1:]
    assert list(table.all.num_open_tokens) == [200, 200]
    ahead_s, num_behind = table.all.ahead(np.full(2, 120.0))
    assert (list(ahead_s), list(num_behind)) == ([2.0, 2.0], [1, 1])
    every[1].remove(every[1].waiting[0])
    assert list(table.all.num_waiting) == [1, 2] and len(every[0].waiting) == 2


LINED = Facts(
    speed=0,
    sent=[(10.0, 200)],
    is_oldest_over=False,
    in_line=[(110.0, 2.0), (130.0, 3.0)],
    num_queued_tokens=0,
    num_running=0,
    num_held=0,
    num_turns=[],
)


def test_a_replica_that_joins_counts_as_if_it_had_had_its_share() -> None:
    """Or all would be sent there until it has caught up with an hour of the others' work."""
    table = CandidateTable(candidate(name, LINED) for name in "ab")
    joins = Candidate("c", SPEEDS[0])

    table.add(joins)

    assert joins.recent(NOW) == pytest.approx(table.all[0].recent(NOW))
    assert len(set(table.all.recent_s)) == 1


def test_what_was_sent_lately_counts_for_months() -> None:
    """Seconds of a clock that has run for long, and a replica that is idle for longer."""
    one, other = (Candidate(name, SPEEDS[0]) for name in "ab")
    table = CandidateTable((one, other))
    for day, busy in ((1, one), (30, other), (90, one)):
        for number in range(3):
            busy.book(asks(number, 700), 0, day * 86400.0)
            busy.finished(asks(number, 700), day * 86400.0)

    recent_s = table.all.recent_s
    assert list(recent_s / recent_s.mean()) == pytest.approx([2.0, 0.0])
    assert table.all.mean_recent(90 * 86400.0)[1] == pytest.approx(1.5)


def test_what_is_booked_in_this_moment_counts_at_once() -> None:
    table = CandidateTable(Candidate(name, SPEEDS[0], epoch=None) for name in ("a", "b"))
    candidates = table.all
    assert candidates.busy_s(NOW).tolist() == [0.0, 0.0]
    held = np.zeros(2)
    assert candidates.prefill_s(700, held).tolist() == [1.0, 1.0]

    candidates[1].book(Prompt(number=1, num_tokens=700, arrived_s=NOW), 0, NOW)
    candidates[0].speed = ConstantRate(tokens_per_s=350.0)

    assert candidates.busy_s(NOW).tolist() == [0.0, 1.0]
    assert candidates.prefill_s(700, held).tolist() == [2.0, 1.0]
