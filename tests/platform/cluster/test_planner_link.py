"""A gateway's reports to the planner."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from baton.core.clock import ManualClock
from baton.core.ids import Epoch
from baton.gateway.fleet.traffic import TrafficReport
from baton.platform.cluster.registry.planner_link import PlannerLink
from baton.platform.planner.planner_metrics import PlannerReply
from baton.platform.planner.traffic_watch import REPORTS_S


async def test_a_report_that_takes_its_time_does_not_put_the_next_one_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, sleep = ManualClock(), asyncio.sleep
    pauses: list[float] = []
    took_s = [0.25 * REPORTS_S, 3 * REPORTS_S, 0.0]

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    async def report_traffic(gateway: Epoch, report: TrafficReport) -> PlannerReply:
        clock.advance(took_s[len(pauses) % len(took_s)])
        return PlannerReply()

    dispatcher = SimpleNamespace(epoch=Epoch("g"), traffic=lambda: TrafficReport(age_s=1.0))
    link = PlannerLink(cast(Any, dispatcher), {}, clock)
    monkeypatch.setattr(asyncio, "sleep", pause)

    link.follow(cast(Any, SimpleNamespace(report_traffic=report_traffic)))
    while len(pauses) < len(took_s):
        await sleep(0)
    link.follow(None)

    assert pauses[: len(took_s)] == [0.75 * REPORTS_S, 0.0, REPORTS_S]
