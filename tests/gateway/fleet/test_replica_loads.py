"""What a gateway knows of each replica's load, by its reports and by what was sent there."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan
from typing import Any

import numpy as np
import pytest
from tests.gateway.fleet.known_replicas import make_replica
from tests.gateway.fleet.scripted_replica import ScriptedReplica, until
from tests.gateway.fleet.small_fleet import (
    PROMPT,
    REQUEST,
    P,
    fleet_of,
    placement,
    silent,
)

from baton.core.clock import ManualClock
from baton.core.ids import new_epoch
from baton.core.messages import Receipt
from baton.core.step_times import StepTimes
from baton.gateway.fleet.placement.placed import Placed
from baton.gateway.fleet.traffic import speeds_of
from baton.router.cache.prompt_names import PromptNames


async def test_rest_that_is_said_again_is_heard_and_is_no_news_of_anything_else() -> None:
    clock = ManualClock()
    replica = ScriptedReplica("d", silent)
    measured = StepTimes(constant_s=0.01, num_decode_steps=3, age_s=5.0)
    async with fleet_of(replica, clock=clock) as fleet:
        link, candidate = fleet.link(replica.info.epoch), fleet.loads.candidate(replica.info.epoch)
        assert candidate is not None

        async def say(**facts: Any) -> int:
            clock.advance(1.0)
            replica.capacity = replace(replica.capacity, **facts)
            replica.say_capacity()
            await until(lambda: link.capacity_report.received_at_s == clock())
            assert fleet.view(PROMPT).decode.known([0])[0].received_at_s == clock()
            return candidate.version

        news = await say(step_times=measured)
        assert await say(step_times=replace(measured, age_s=6.0)) == news
        assert await say(step_times=replace(measured, age_s=7.0)) == news
        assert speeds_of([link], clock())[replica.info.epoch].age_s == 7.0

        candidate.num_running = 1
        await say()
        assert candidate.num_running == 0
        await say(num_running=2)
        assert candidate.num_running == 2
        await say(num_running=0, max_open=3)
        assert link.capacity is not None
        assert link.capacity.max_open == 3


async def test_tokens_placed_on_a_prefill_replica_count_for_as_long_as_they_are_waited_for() -> (
    None
):
    async with fleet_of(others=(P,)) as fleet:
        first, second = placement(100), placement(20)
        fleet.loads.book(first, P.epoch)
        fleet.loads.book(second, P.epoch)

        fleet.loads.prompt_is_over(first.prompt, P.epoch)
        fleet.loads.prompt_is_over(first.prompt, P.epoch)  # heard twice

        assert fleet.view(PromptNames()).prefill[0].candidate.num_open_tokens == 20


async def test_a_prefill_replica_that_has_lent_nothing_yet_gets_one_prompt_at_a_time() -> None:
    async with fleet_of(others=(P,)) as fleet:
        first, second = placement(100), placement(20)
        [view] = fleet.view(PromptNames()).prefill
        assert view.candidate.takes(first.prompt, 0)

        fleet.loads.book(first, P.epoch)

        assert not view.candidate.takes(second.prompt, 0)
        fleet.loads.prompt_is_over(first.prompt, P.epoch)
        assert view.candidate.takes(second.prompt, 0)


async def test_what_cannot_be_of_a_replicas_speed_is_not_believed_and_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    replica = ScriptedReplica("d", silent)
    sound = StepTimes(token_s=0.001, num_prompt_steps=99)
    others = [replace(sound, token_s=nan), replace(sound, pair_s=inf), replace(sound, token_s=-1.0)]
    async with fleet_of(replica) as fleet:
        candidate = fleet.loads.candidate(replica.info.epoch)
        assert candidate is not None

        async def believed(times: StepTimes, slowness: float = 1.0) -> float:
            num_queued = replica.capacity.num_queued_tokens + 1
            said = replace(replica.capacity, step_times=times, slowness=slowness)
            replica.capacity = said
            replica.offer(8, num_queued_tokens=num_queued)
            link = fleet.link(replica.info.epoch)
            await until(lambda: link.capacity and link.capacity.num_queued_tokens == num_queued)
            return candidate.speed.prefill_s(1000, 0)

        assert await believed(sound) == 1.0
        for unsound in (*others, StepTimes(num_prompt_steps=99)):
            assert await believed(unsound) == 1.0
        assert await believed(sound, slowness=nan) == 1.0
        assert await believed(sound, slowness=2.0) == 2.0
    assert caplog.text.count("an impossible speed") == 1


async def test_the_end_of_an_attempt_leaves_the_next_one_where_it_runs() -> None:
    async with fleet_of() as fleet:
        old, new = new_epoch(), new_epoch()
        fleet.loads.has_started(REQUEST.request_id, old)
        fleet.loads.has_started(REQUEST.request_id, new)

        fleet.loads.has_ended(REQUEST.request_id, old)
        assert fleet.loads.where_runs(REQUEST.request_id) == new
        fleet.loads.has_ended(REQUEST.request_id, new)
        assert fleet.loads.where_runs(REQUEST.request_id) is None


async def test_only_a_rate_that_has_moved_is_written_to_replicas_that_measured_none() -> None:
    async with fleet_of(others=(P,)) as fleet:
        [view] = fleet.view(PromptNames()).prefill
        table = fleet.view(PromptNames()).prefill.pool.table

        def observe(tokens_per_s: float) -> tuple[int, float]:
            seconds = 1000 / tokens_per_s
            fleet.loads.hear_receipt(Receipt(prompt_tokens=1000, prefill_ms=seconds * 1e3), None)
            work_s = table.all.prefill_s(1000, np.zeros(len(table)))
            return table.version, float(work_s[0])

        version, work_s = observe(500.0)
        assert work_s == view.candidate.speed.prefill_s(1000, 0) == pytest.approx(2.0)

        assert observe(502.0) == (version, work_s)
        assert observe(1000.0)[1] == view.candidate.speed.prefill_s(1000, 0) < 1.8


async def test_a_link_is_learnt_of_the_replica_that_pulled_not_of_who_was_to_compute() -> None:
    replica = ScriptedReplica("d", silent)
    lender = make_replica("lender")
    async with fleet_of(replica, others=(P, lender)) as fleet:
        place = replace(
            placement(1000),
            decode=replica.info,
            prefill=(P.endpoint,),
            source=lender.endpoint,
        )
        placed = Placed(fleet, place, REQUEST, PROMPT)
        for _ in range(3):
            placed.observe(Receipt(pulled_tokens=1000, kv_bytes=10**6, transfer_ms=1e5))
        for _ in range(20):  # elsewhere all is well
            fleet.loads.hear_receipt(
                Receipt(pulled_tokens=1000, kv_bytes=10**6, transfer_ms=1.0), None
            )

        slow_s, other_s = (
            fleet.loads.meter.rates.fetch_s(1000, P.layout, (lender.epoch, taker))
            for taker in (replica.info.epoch, P.epoch)
        )
        assert slow_s > 1.5 * other_s
        placed.close(0)
