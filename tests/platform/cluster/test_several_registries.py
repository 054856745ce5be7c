"""What replicas and gateways say to several registries, and what they make of the answers."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.gateway.fleet.known_replicas import make_replica
from tests.gateway.fleet.scripted_replica import until

from baton.core.clock import ManualClock
from baton.core.errors import Unavailable
from baton.core.ids import Epoch
from baton.core.replicas import ReplicaInfo, Role, StartingReplica
from baton.gateway.fleet.traffic import TrafficReport
from baton.platform.cluster.registry import all_registries, gateway_registries, registry_actor
from baton.platform.cluster.registry.all_registries import AllRegistries
from baton.platform.cluster.registry.gateway_registries import AVOIDED_S, GatewayRegistries
from baton.platform.cluster.registry.planning import planned
from baton.platform.cluster.registry.registry_actor import RegistryActor
from baton.platform.config.deployment import DeploymentConfig, override
from baton.platform.planner import traffic_watch
from baton.platform.planner.planner import Planner
from baton.platform.planner.planner_metrics import PlannerReply
from baton.platform.registry.limit_shares import LimitShares
from baton.platform.registry.registry import Registry

A, B = make_replica("a"), make_replica("b")
STARTING = StartingReplica(replica_id=A.replica_id, role=Role.DECODE, stage="importing")
ONE, OTHER = Epoch("one gateway"), Epoch("the other")


@dataclass
class Line:
    """One registry; it answers as `mood` says: `well`, `away`, or not at all."""

    mood: str = "well"
    clock: ManualClock = field(default_factory=ManualClock)
    is_cut: bool = False
    num_traffic: int = 0
    num_asked: int = 0
    heard: list[ReplicaInfo] = field(default_factory=list)
    may_proceed: asyncio.Event = field(default_factory=asyncio.Event)
    """Whoever hangs."""

    def __post_init__(self) -> None:
        self.registry = Registry(clock=self.clock)
        self.shares = LimitShares(self.clock)

    async def _answer(self) -> None:
        self.num_asked += 1
        if self.mood == "away":
            raise ConnectionError("away")
        if self.mood != "well":
            await self.may_proceed.wait()

    async def heartbeat(self, info: ReplicaInfo) -> float:
        await self._answer()
        self.heard.append(info)
        return self.registry.heartbeat(info).beat_s

    async def leave(self, epoch: Epoch) -> None:
        await self._answer()
        self.registry.leave(epoch)

    async def report_starting(self, starting: StartingReplica) -> float:
        await self._answer()
        return self.registry.report_starting(starting)

    async def spare(self, epoch: Epoch, may_be_last: bool) -> str:
        await self._answer()
        return self.registry.spare(epoch, may_be_last=may_be_last)

    async def share_limits(self, gateway: Epoch, demand: Mapping[str, float]) -> dict[str, float]:
        await self._answer()
        return self.shares.report(gateway, demand)

    async def report_traffic(self, gateway: Epoch, report: TrafficReport) -> PlannerReply:
        await self._answer()
        self.num_traffic += 1
        return PlannerReply()

    async def explain_planner(self) -> dict[str, Any]:
        await self._answer()
        return {"is_enabled": True}


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BEAT_S", "FAREWELL_S", "SPARE_S", "STARTING_S"):
        monkeypatch.setattr(all_registries, name, 0.1)
    for name in ("SHARES_S", "FIRST_S", "AGAIN_S"):
        monkeypatch.setattr(gateway_registries, name, 0.1)


def lines(*moods: str) -> list[Line]:
    clock = ManualClock()
    return [Line(mood, clock) for mood in moods]


async def test_a_heartbeat_goes_to_each_registry_when_that_one_wants_it_whoever_hangs() -> None:
    first, hanging, away = all_three = lines("well", "hangs", "away")
    clock = first.clock
    registries = AllRegistries(all_three, clock)
    assert 0 < await registries.heartbeat(A) <= 1.0
    assert await registries.heartbeat(A) > 0  # not due yet
    assert len(first.heard) == 1
    clock.advance(1.0)
    await registries.heartbeat(A)
    away.mood = "well"
    first.is_cut = True
    assert registries.is_cut
    await registries.heartbeat(A)
    first.is_cut = False
    news = replace(A, is_ready=False)
    await registries.heartbeat(news)

    assert first.heard == [A, A, A, news]
    assert away.heard == [news]  # it is tried again after a second
    assert hanging.num_asked == 2  # with all, and with what was new; nothing meanwhile


async def test_a_replica_is_told_when_no_registry_hears_it() -> None:
    registries = AllRegistries(lines("away", "away"))

    with pytest.raises(ConnectionError):
        await registries.heartbeat(A)
    with pytest.raises(ConnectionError):
        await registries.leave(A.epoch)


async def test_news_whose_telling_was_broken_off_are_told_again() -> None:
    [line] = one = lines("well")
    registries = AllRegistries(one, line.clock)
    await registries.heartbeat(A)
    line.mood, news = "hangs", replace(A, is_ready=False)
    telling = asyncio.create_task(registries.heartbeat(news))
    await asyncio.sleep(0)
    telling.cancel()
    await asyncio.gather(telling, return_exceptions=True)
    line.mood = "well"
    assert registries.is_cut
    await registries.heartbeat(news)

    assert line.heard == [A, news]


async def test_a_farewell_and_a_start_are_told_to_all_who_hear_them() -> None:
    first, _, third = all_three = lines("well", "hangs", "well")
    registries = AllRegistries(all_three, first.clock)
    assert await registries.report_starting(STARTING) > 0
    assert len(third.registry.membership().starting) == 1
    await registries.heartbeat(A)
    await registries.leave(A.epoch)

    assert [line.registry.membership().left for line in (first, third)] == [(A.epoch,)] * 2
    await registries.heartbeat(A)  # it has stayed after all
    assert first.registry.membership().replicas == third.registry.membership().replicas == (A,)


async def test_a_heartbeat_that_is_on_its_way_is_not_told_behind_a_farewell() -> None:
    first, slow = both = lines("well", "hangs")
    registries = AllRegistries(both, first.clock)
    await registries.heartbeat(A)
    slow.mood = "well"
    await registries.leave(A.epoch)
    slow.may_proceed.set()
    await asyncio.sleep(0.01)

    assert first.heard and not slow.heard
    assert slow.registry.membership().left == (A.epoch,)


class Patient(Line):
    def __init__(self) -> None:
        """It has nothing that belongs to an event loop."""

    @property
    def is_cut(self) -> bool:  # type: ignore[override]
        return False

    async def heartbeat(self, info: ReplicaInfo) -> float:
        return 60.0


async def test_another_process_is_handed_the_lines_and_nothing_of_an_event_loop() -> None:
    registries = AllRegistries([Patient()])
    await registries.heartbeat(A)

    assert await pickle.loads(pickle.dumps(registries)).heartbeat(A) > 0


@pytest.mark.parametrize("moods", [("well", "well", "well"), ("well", "away", "well")])
async def test_of_two_replicas_that_would_leave_at_once_one_stays(moods: tuple[str, ...]) -> None:
    all_three = lines(*moods)
    one, other = AllRegistries(all_three), AllRegistries(tuple(reversed(all_three)))
    for info in (A, B):
        await AllRegistries(all_three).heartbeat(info)

    answers = await asyncio.gather(one.spare(A.epoch, False), other.spare(B.epoch, False))

    assert any(answers)


async def test_nobody_leaves_while_half_of_the_registries_are_away() -> None:
    well, away = both = lines("well", "away")
    registries = AllRegistries(both, well.clock)
    for info in (B, A):
        await registries.heartbeat(info)

    with pytest.raises(Unavailable, match="1 of 2 registries answer"):
        await registries.spare(A.epoch, False)
    assert registries.is_cut  # who has taken it for gone is told anew
    await registries.heartbeat(A)
    assert all(info.is_ready for info in well.registry.membership().replicas)
    away.mood = "well"
    for info in (B, A):
        away.registry.heartbeat(info)
    assert not await registries.spare(A.epoch, False)


async def test_gateways_that_share_one_registry_stay_within_a_limit() -> None:
    common, *_ = all_three = lines("well", "well", "well")
    demand = {"tenant": 5.0}
    one = GatewayRegistries(all_three[:2], common.clock)
    other = GatewayRegistries([all_three[2], common], common.clock)
    for _ in range(2):
        shares = [
            (await registries.share_limits(gateway, demand))["tenant"]
            for gateway, registries in ((ONE, one), (OTHER, other))
        ]

    assert sum(shares) == pytest.approx(1.0)
    common.mood = "hangs"
    assert await one.share_limits(ONE, demand) == {"tenant": 0.5}  # its last word still holds
    all_three[1].mood = "away"
    common.clock.advance(60.0)
    with pytest.raises(ConnectionError):
        await one.share_limits(ONE, demand)


async def test_traffic_is_told_to_the_first_registry_that_answers_and_again_once_it_is_back() -> (
    None
):
    first, second = both = lines("away", "well")
    registries = GatewayRegistries(both, first.clock)
    report = TrafficReport(age_s=0.0)
    await registries.report_traffic(ONE, report)
    first.mood = "well"
    await registries.report_traffic(ONE, report)
    assert (first.num_traffic, second.num_traffic) == (0, 2)
    first.clock.advance(AVOIDED_S)
    await registries.report_traffic(ONE, report)
    assert (first.num_traffic, second.num_traffic) == (1, 2)
    assert await registries.explain_planner() == {"is_enabled": True}
    first.mood = second.mood = "away"

    with pytest.raises(ConnectionError):
        await registries.report_traffic(ONE, report)


async def test_one_that_was_away_is_not_waited_for_while_another_would_miss_the_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = both = lines("away", "well")
    registries = GatewayRegistries(both, first.clock)
    await registries.report_traffic(ONE, TrafficReport(age_s=0.0))
    monkeypatch.setattr(gateway_registries, "FIRST_S", 600.0)
    first.mood = "hangs"
    first.clock.advance(AVOIDED_S)
    async with asyncio.timeout(60):  # only keeps a failing test from hanging
        await registries.report_traffic(ONE, TrafficReport(age_s=1.0))

    assert (first.num_asked, second.num_traffic) == (2, 2)


@pytest.fixture
def planners(monkeypatch: pytest.MonkeyPatch) -> list[Planner]:
    """What a RegistryActor begins to plan with, where Ray is not needed."""
    planners = list[Planner]()

    async def plan(planner: Planner, *_: object) -> None:
        planners.append(planner)
        await asyncio.Event().wait()

    async def never(*_: object) -> None:
        await asyncio.Event().wait()

    handle = SimpleNamespace(watch=SimpleNamespace(remote=never))
    serve = SimpleNamespace(
        get_replica_context=lambda: SimpleNamespace(app_name="baton"),
        get_deployment_handle=lambda *_: handle,
    )
    for name, value in {"keep_planned": plan, "serve": serve, "SILENT_S": 0.05}.items():
        monkeypatch.setattr(registry_actor, name, value)
    monkeypatch.setattr(registry_actor, "REPORTS_S", 0.01)
    monkeypatch.setattr(registry_actor, "start_actor_log", lambda *_: None)
    monkeypatch.setattr(traffic_watch, "SILENT_S", 0.05)
    return planners


def one_of_three() -> RegistryActor:
    config = override(DeploymentConfig(), {"registry.replicas": 3, "planner.enabled": True})
    actor = RegistryActor(config, "Registry-1")
    actor._plan(planned(config))
    return actor


REPORT = msgspec.msgpack.encode(TrafficReport(age_s=0.0))


async def test_one_of_several_registries_plans_while_gateways_tell_it_of_traffic(
    planners: list[Planner],
) -> None:
    actor = one_of_three()
    assert not planners

    def is_number(number: int) -> bool:
        return len(planners) == number

    for number in (1, 2):
        await actor.report_traffic(ONE, REPORT)
        await until(partial(is_number, number))
        await until(lambda: actor._planner is None)
    actor._plan(None)
    await actor.report_traffic(ONE, REPORT)

    assert await actor.explain_planner() == {"is_enabled": False}
    assert planners[0] is not planners[1]  # it does not go by what was long ago


async def test_a_registry_that_stood_still_hears_the_reports_that_lie_unread_and_plans_on(
    planners: list[Planner], monkeypatch: pytest.MonkeyPatch
) -> None:
    num_heard = [1, 0, 1, 0, 0]
    monkeypatch.setattr(Planner, "num_heard", property(lambda _: num_heard.pop(0)))
    actor = one_of_three()
    await actor.report_traffic(ONE, REPORT)
    await until(lambda: actor._planner is None)

    assert num_heard == []
    assert len(planners) == 1
