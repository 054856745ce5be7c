"""A fleet follows its registry: updates that arrive, cannot be applied, or are lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

import grpc.aio
import pytest
from tests.gateway.fleet.known_replicas import make_replica
from tests.gateway.fleet.scripted_replica import ScriptedReplica, snapshot, until
from tests.gateway.fleet.small_fleet import PROMPT, P, fleet_of, names, silent

from baton.core.ids import Epoch, ReplicaId, new_epoch
from baton.core.replicas import Membership, ReportIntervals, Role, StartingReplica
from baton.gateway.fleet.fleet import Fleet
from baton.gateway.fleet.membership import registry_follower
from baton.proto.channel_options import CHANNEL_OPTIONS, ChannelOptions
from baton.proto.channels import Channels


class UnreliableRegistry:
    """Answers, fails, answers; then says nothing more."""

    def __init__(self, *answers: Membership | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[Epoch | None, int]] = []

    async def watch(self, incarnation: Epoch | None, version: int) -> Membership:
        self.asked.append((incarnation, version))
        if not self.answers:
            await asyncio.Event().wait()
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


@asynccontextmanager
async def following(
    registry: UnreliableRegistry, channels: Channels | None = None
) -> AsyncIterator[Fleet]:
    fleet = Fleet(new_epoch(), lambda: None, channels or Channels())
    task = asyncio.create_task(registry_follower.follow(registry, fleet))
    try:
        yield fleet
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await fleet.close()


async def test_the_fleet_stays_as_it_was_while_the_registry_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry_follower, "REGISTRY_RETRY_S", 0.0)
    registry = UnreliableRegistry(snapshot(P), *[ConnectionError("the head is away")] * 3)
    async with following(registry) as fleet:
        await until(lambda: len(registry.asked) == 5)

        assert names(fleet) == {"p"}


async def test_the_fleet_hears_the_news_once_the_registry_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry_follower, "REGISTRY_RETRY_S", 0.0)
    later = make_replica("later", role=Role.PREFILL)
    registry = UnreliableRegistry(snapshot(P), ConnectionError("away"), snapshot(P, later))
    async with following(registry) as fleet:
        await until(lambda: len(registry.asked) == 4)

        assert names(fleet) == {"p", "later"}
        what_it_has = (snapshot().incarnation, snapshot().version)
        assert registry.asked == [(None, -1), what_it_has, what_it_has, what_it_has]


class Picky(Channels):
    """It opens no channel to one of the replicas."""

    def new(self, address: str, options: ChannelOptions = CHANNEL_OPTIONS) -> grpc.aio.Channel:
        if address == "nowhere":
            raise ValueError("not an address")
        return super().new(address, options)


async def test_a_replica_that_cannot_be_met_keeps_nobody_from_the_others() -> None:
    odd = replace(make_replica("odd"), address="nowhere")
    registry = UnreliableRegistry(snapshot(odd, P))
    async with following(registry, Picky()) as fleet:
        await until(lambda: len(registry.asked) == 2)

        assert names(fleet) == {"p"}
        assert [one.info for one in fleet.view(PROMPT).prefill] == [P]


async def test_a_snapshot_that_cannot_be_followed_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry_follower, "REGISTRY_RETRY_S", 0.0)
    unreadable = replace(snapshot(P), replicas=(None,))  # type: ignore[arg-type]
    registry = UnreliableRegistry(unreadable, snapshot(P))
    async with following(registry) as fleet:
        await until(lambda: names(fleet) == {"p"})

        assert registry.asked[:2] == [(None, -1), (None, -1)]


async def test_a_later_start_that_fails_is_told_once_and_the_first_ones_not_at_all(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of those `baton serve` itself tells."""
    loading = StartingReplica(replica_id=ReplicaId("new"), role=Role.DECODE, stage="loading")
    failed = loading.failed("no memory", is_final=False)
    replica = ScriptedReplica("d", silent)
    async with fleet_of() as fleet:
        await fleet.apply(replace(snapshot(), starting=(failed,)))
        assert "no memory" not in caplog.text

    async with fleet_of(replica) as fleet:
        for starting in (loading, failed, failed):
            await fleet.apply(replace(snapshot(replica.info), starting=(starting,)))

    assert caplog.text.count("new failed while loading: no memory") == 1


async def test_those_that_are_heard_seldom_are_given_the_time_to_report_to_a_new_registry() -> None:
    intervals = ReportIntervals.of(1000)
    new = replace(snapshot(), incarnation=Epoch("another"), age_s=intervals.settled_after_s - 1)
    async with fleet_of() as fleet:
        await fleet.apply(replace(snapshot(P), intervals=intervals))
        await fleet.apply(new)
        assert names(fleet) == {"p"}

        await fleet.apply(replace(new, age_s=intervals.settled_after_s))

        assert names(fleet) == set()


async def test_a_registry_that_hangs_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_follower, "WATCH_TIMEOUT_S", 0.01)
    monkeypatch.setattr(registry_follower, "REGISTRY_RETRY_S", 0.0)
    registry = UnreliableRegistry()
    async with following(registry):
        await until(lambda: len(registry.asked) >= 2)
