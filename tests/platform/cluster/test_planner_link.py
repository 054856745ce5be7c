"""A gateway's reports to the planner."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from baton.core.clock import ManualClock
from baton.core.ids import Epoch
from baton.core.metrics import gauge
from baton.core.step_times import StepTimes
from baton.gateway.fleet.traffic import ReplicaSpeed, TrafficReport
from baton.platform.cluster.registry.planner_link import PlannerLink
from baton.platform.cluster.registry.registry_actor import RegistryActor
from baton.platform.cluster.registry.remote_registry import RemoteRegistry
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


async def test_reports_and_answers_are_read_by_the_version_before_and_after() -> None:
    told = TrafficReport(
        age_s=1.0, num_waiting=3, speeds={Epoch("d"): ReplicaSpeed(StepTimes(token_s=1e-3), 2.0)}
    )
    answer = PlannerReply({"prefill": 7}, (gauge("baton_planner_x", "", 3.0, role="decode"),))
    heard: list[TrafficReport] = []

    def add_report(gateway: Epoch, report: TrafficReport) -> PlannerReply:
        heard.append(report)
        return answer

    actor = cast(Any, SimpleNamespace(_planner_if_any=SimpleNamespace(add_report=add_report)))

    def changed(message: bytes, missing: str) -> bytes:
        """As a version sends it that knows one field more, and one less."""
        fields = msgspec.msgpack.decode(message)
        del fields[missing]
        return msgspec.msgpack.encode({"new": 1, **fields})

    async def report_traffic(gateway: Epoch, message: bytes) -> bytes:
        reply = await RegistryActor.report_traffic(actor, gateway, changed(message, "num_open"))
        return changed(reply, "planned")

    handle = SimpleNamespace(report_traffic=SimpleNamespace(remote=report_traffic))
    registry = RemoteRegistry(cast(Any, handle))

    assert await registry.report_traffic(Epoch("g"), told) == replace(answer, planned={})
    assert heard == [told]
