"""What a gateway learns of how long first tokens take, and what it answers who asks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.gateway.fleet.asking import ask, generation
from tests.gateway.fleet.known_replicas import make_replica
from tests.gateway.fleet.scripted_replica import (
    ScriptedReplica,
    answers,
    breaks_after,
    dispatching_to,
    silent,
    snapshot,
    until,
)
from tests.router.test_decisions import CHOSEN

from baton.core.clock import ManualClock
from baton.core.ids import RequestId
from baton.core.messages import GenerateRequest, Receipt
from baton.core.replicas import Role
from baton.core.sampling import SamplingParams
from baton.core.step_times import StepTimes
from baton.gateway.fleet.placement.decision_log import DecisionLog, FirstToken, PlacementRecord
from baton.router.placement import Placement
from baton.router.prompt import Prompt
from baton.router.speeds.prediction_errors import PredictionErrors


def test_who_gave_up_when_the_first_token_was_late_counts_and_the_impatient_do_not() -> None:
    errors, clock = PredictionErrors(), ManualClock()
    for _ in range(100):
        errors.observe(1.0, 1.0)
    usual = errors.interval(1.0)

    def give_up_after(seconds: float) -> None:
        first_token = FirstToken(errors, clock)
        first_token.foresee(1.0, clock())
        clock.advance(seconds)
        first_token.never_comes()
        first_token.never_comes()

    give_up_after(0.5)
    assert errors.interval(1.0) == usual and len(errors) == 100
    for _ in range(10):
        give_up_after(5.0)
    assert errors.interval(1.0).high == pytest.approx(5.0) and len(errors) == 110


async def test_a_request_whose_first_attempt_failed_is_heard_of_once_by_its_real_first_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard: list[tuple[float, float]] = []
    monkeypatch.setattr(PredictionErrors, "observe", lambda self, *pair: heard.append(pair))
    one, other = (ScriptedReplica(name, breaks_after(), answers(1)) for name in ("d1", "d2"))
    async with dispatching_to(one, other) as dispatcher:
        tokens, receipt = await ask(dispatcher)

    assert tokens == [1] and receipt.attempts > 1
    assert len(heard) == 1 and heard[0][1] > 0


async def test_what_a_prompt_takes_is_known_from_the_first_one_on() -> None:
    replica, clock = ScriptedReplica("d", silent), ManualClock()
    async with dispatching_to(replica, clock=clock) as dispatcher:
        log = DecisionLog(dispatcher.fleet, "cost", 0, clock)
        asked = PlacementRecord("", 0.0, 0.0, FirstToken(log.ttft_errors, clock))
        prompt = Prompt(number=1, num_tokens=3, arrived_s=0.0)
        for work_s in (3.0, 1.0):
            chosen = CHOSEN._replace(work_s=work_s)
            placement = Placement(
                decode=replica.info, prompt=prompt, reason="a test", considered=(chosen,)
            )
            request = GenerateRequest(request_id=RequestId("r"), attempt=1, prompt=(1, 2, 3))
            log.sent(asked, request, placement)
            if work_s == 3.0:
                assert log.queued_s(2, 1) == 6.0

        assert log.queued_s(2, 1) == 4.0


async def test_where_guesses_are_right_a_step_gives_several_tokens() -> None:
    replica, clock = ScriptedReplica("d", silent), ManualClock()
    times = StepTimes(constant_s=0.03, num_decode_steps=99)
    replica.capacity = replace(replica.capacity, step_times=times)
    async with dispatching_to(replica, clock=clock) as dispatcher:
        log, epoch = DecisionLog(dispatcher.fleet, "cost", 9, clock), replica.info.epoch
        prompt = Prompt(number=1, num_tokens=3, arrived_s=0.0)
        placement = Placement(
            decode=replica.info, prompt=prompt, reason="a test", considered=(CHOSEN,)
        )
        request = GenerateRequest(request_id=RequestId("r"), attempt=1, prompt=(1, 2, 3))

        def predicted() -> float | None:
            asked = PlacementRecord("", 0.0, 0.0, FirstToken(log.ttft_errors, clock))
            followed = log.sent(asked, request, placement)
            followed.deliver(1)
            followed.observe(Receipt(output_tokens=1), epoch)
            followed.observe(Receipt(output_tokens=101, accepted_tokens=50), epoch)
            followed.end()
            return tuple(log.decisions)[-1].predicted_itl_s

        assert predicted() == pytest.approx(0.03)
        assert predicted() == pytest.approx(0.015)


async def test_an_estimate_is_of_the_request_as_it_would_be_placed() -> None:
    """Logprobs of the prompt come only from its decode replica."""
    replica, clock = ScriptedReplica("d", silent), ManualClock()
    async with dispatching_to(replica, clock=clock) as dispatcher:
        await dispatcher.fleet.apply(snapshot(replica.info, make_replica("p", role=Role.PREFILL)))
        await until(lambda: dispatcher.fleet.warm_up.is_over)
        long = replace(generation(), prompt=tuple(range(100)))
        explained = replace(long, sampling=SamplingParams(max_tokens=4, num_prompt_logprobs=1))

        computes = [(await dispatcher.estimate(one)).computes for one in (long, explained)]

    assert computes == ["p", "d"]
