"""What was decided, what came of it, and what predictions are worth."""

from __future__ import annotations

import random
from dataclasses import replace

import msgspec
import pytest

from baton.core.clock import ManualClock
from baton.core.ids import Epoch, ReplicaId, RequestId
from baton.router.explain.capture import capture
from baton.router.explain.decisions import KEPT_S, Considered, Decision, Decisions, Outcome
from baton.router.replicas.candidate import Candidate
from baton.router.speeds.prediction_errors import PredictionErrors
from baton.router.speeds.speed import ConstantRate

CHOSEN = Considered(
    replica_id=ReplicaId("p"),
    epoch=Epoch("p"),
    cost=1.0,
    num_held_tokens=0,
    wait_s=1.0,
    work_s=0.5,
    latency_s=0.25,
    corrected_s=2.0,
    age_s=None,
    terms={},
)
DECISION = Decision(
    request_id=RequestId("req-1-aaaa"),
    attempt=1,
    owner="",
    decided_at=0.0,
    num_tokens=500,
    num_prefill_tokens=500,
    policy="cost",
    reason="",
    computes=ReplicaId("p"),
    decodes=ReplicaId("d"),
    considered=(CHOSEN,),
    num_candidates=1,
    waited_s=0.0,
    in_line_s=0.0,
    foreseen_s=1.75,
    predicted_s=1.75,
)


def test_the_oldest_decisions_are_forgotten_by_number_and_by_age() -> None:
    """By the time that has passed: the wall clock was set back after the first."""
    clock = ManualClock()
    decisions = Decisions(max_kept=2, clock=clock)
    for number, decided_at in enumerate((1e9, 5e8, 6e8)):
        request_id = RequestId(f"req-{number}-aaaa")
        decisions.record(replace(DECISION, request_id=request_id, decided_at=decided_at))
        clock.advance(1.0)

    assert [one.public_id for one in decisions] == ["req-1", "req-2"]
    assert decisions.of("req-0") == ()
    clock.advance(KEPT_S - 2.0)
    assert len(decisions.of("req-1")) == 1
    clock.advance(0.5)
    assert decisions.of("req-1") == () and len(decisions) == 1
    clock.advance(1.0)
    assert list(decisions) == []


def test_decisions_outlive_the_names_of_their_blocks_which_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("baton.router.explain.decisions.MAX_KEPT_NAMES", 5)
    decisions = Decisions(max_kept=3)
    for number in range(5):
        names = [bytes([number])] * 2
        decisions.record(replace(DECISION, request_id=RequestId(f"req-{number}-a"), names=names))

    kept = list(decisions)
    assert [one.public_id for one in kept] == ["req-2", "req-3", "req-4"]
    assert [len(one.names or ()) for one in kept] == [0, 2, 2]
    lines = [msgspec.json.decode(line) for line in capture(kept, "cost", ())][1:]
    assert [one["decision"]["request_id"] for one in lines] == ["req-3-a", "req-4-a"]


def test_one_that_is_forgotten_comes_to_nothing_and_the_others_are_told_apart() -> None:
    decisions = Decisions(max_kept=2)
    first, second, third = (decisions.record(DECISION) for _ in range(3))
    for number, seconds in ((first, 1.0), (second, 2.0), (third, 3.0)):
        decisions.conclude(number, Outcome(first_token_s=seconds, best_other_s=2.5))
    before = iter(decisions)
    decisions.finish(third, num_output_tokens=7, itl_s=0.1)

    assert [one.outcome.is_over for one in before if one.outcome] == [False, False]
    outcomes = [one.outcome for one in decisions.of("req-1")]
    assert [one.first_token_s for one in outcomes if one] == [2.0, 3.0]
    assert [one.regret_s for one in outcomes if one] == [0.0, 0.5]
    assert [one.num_output_tokens for one in outcomes if one] == [0, 7]


@pytest.mark.parametrize(("corrected_s", "expected_s"), [(2.0, 1.75), (5.0, 4.75), (0.0, 0.75)])
def test_in_hindsight_a_replica_that_was_late_would_have_been_late_for_this_one(
    corrected_s: float, expected_s: float
) -> None:
    candidate = Candidate("p", ConstantRate(tokens_per_s=1000.0), corrected_s=corrected_s)

    assert CHOSEN.in_hindsight_s(500, candidate) == expected_s


def test_nine_of_ten_fall_into_the_interval_whatever_predictions_are_off_by() -> None:
    """Small ones are twice too low with much noise, large ones a little too high."""
    draw, errors = random.Random(0), PredictionErrors()
    num_inside = 0
    for number in range(1200):
        predicted = draw.choice((0.02, 3.0))
        factor = 2.0 * draw.lognormvariate(0, 0.5) if predicted < 1 else 0.9 + 0.1 * draw.random()
        interval = errors.interval(predicted)
        if number >= 200:
            num_inside += interval.low <= predicted * factor <= interval.high
        errors.observe(predicted, predicted * factor)

    assert 0.87 < num_inside / 1000 < 0.93
    large = errors.interval(3.0)
    assert 2.7 < large.low < large.middle < large.high < 3.0


def test_what_was_never_heard_of_is_guessed_widely() -> None:
    interval = PredictionErrors().interval(1.0, spread=1.0)

    assert interval.low == pytest.approx(1 / 8)
    assert interval.middle == pytest.approx(1.0)
    assert interval.high == pytest.approx(8.0)


def test_errors_that_grow_all_the_time_are_caught_up_with() -> None:
    draw, errors = random.Random(0), PredictionErrors()
    num_inside = 0
    for number in range(1000):
        actual = draw.lognormvariate(number / 200, 0.3)
        interval = errors.interval(1.0)
        num_inside += interval.low <= actual <= interval.high
        errors.observe(1.0, actual)

    assert num_inside / 1000 > 0.8
