"""What a decision tells of replicas is what was so when it was made."""

from __future__ import annotations

from tests.gateway.fleet.known_replicas import view_of
from tests.router.placing import LONG, NAMES, decode, placer

from baton.core.step_times import StepTimes
from baton.router.placement import Placement
from baton.router.prompt import Prompt
from baton.router.speeds.speed import MeasuredSpeed


def test_what_happens_to_replicas_afterwards_does_not_change_what_was_told_of_them() -> None:
    here, other = decode("one"), decode("other")
    here.replica.received_at_s = 3.0
    work = Prompt(number=9, num_tokens=1000, arrived_s=0.0)
    here.candidate.book(work, 0, 3.5)
    placement = placer().place(LONG, NAMES, view_of(decode=(here, other)), 4.0)
    assert isinstance(placement, Placement)
    told = placement.considered
    before = list(told)

    here.replica.received_at_s = 9.0
    here.candidate.finished(work, 9.0)
    here.candidate.speed = MeasuredSpeed(times=StepTimes(token_s=1.0), max_chunk=512)
    other.candidate.num_running = 7

    assert list(told) == before and len(told) == 2
    assert told[1] == before[1] and told[1].age_s == 1.0 and told[1].corrected_s == 0.0
    assert told[1].wait_s == 0.5 and told[1].terms["wait_s"] == 0.5
