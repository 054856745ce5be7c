from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.gateway.fleet.known_replicas import make_replica

from baton.core.clock import ManualClock, monotonic
from baton.core.ids import ReplicaId
from baton.core.replicas import Role, StartingReplica
from baton.gateway.fleet.membership.registry_follower import WATCH_TIMEOUT_S
from baton.platform.registry.registry import LEFT_FOR_S, Registry
from baton.platform.registry.starting import TTL_S as STARTING_TTL_S

TTL_S = 3.5


def names(registry: Registry) -> list[str]:
    return [info.replica_id for info in registry.membership().replicas]


def starting(name: str, fraction: float) -> StartingReplica:
    return StartingReplica(
        replica_id=ReplicaId(name), role=Role.DECODE, stage="loading weights", fraction=fraction
    )


def test_a_heartbeat_makes_a_replica_known() -> None:
    registry = Registry()

    registry.heartbeat(make_replica("a"))

    assert registry.membership().replicas == (make_replica("a"),)


def test_a_repeated_heartbeat_changes_nothing_so_nobody_is_woken() -> None:
    registry = Registry()
    registry.heartbeat(make_replica("a"))
    before = registry.membership().version

    registry.heartbeat(make_replica("a"))

    assert registry.membership().version == before


def test_a_replica_that_turns_unready_is_news() -> None:
    registry = Registry()
    registry.heartbeat(make_replica("a"))
    before = registry.membership().version

    registry.heartbeat(make_replica("a", is_ready=False))

    assert registry.membership().version > before
    assert [info.is_ready for info in registry.membership().replicas] == [False]


def test_a_replica_is_dropped_after_a_silence_longer_than_its_time_to_live() -> None:
    clock = ManualClock()
    registry = Registry(ttl_s=TTL_S, clock=clock)
    registry.heartbeat(make_replica("silent"))
    registry.heartbeat(make_replica("alive"))

    clock.advance(TTL_S)
    registry.heartbeat(make_replica("alive"))
    assert names(registry) == ["silent", "alive"]
    clock.advance(0.1)

    assert names(registry) == ["alive"]


def test_a_replica_that_was_dropped_may_come_back() -> None:
    clock = ManualClock()
    registry = Registry(ttl_s=TTL_S, clock=clock)
    registry.heartbeat(make_replica("a"))
    clock.advance(TTL_S + 1)
    assert names(registry) == []

    registry.heartbeat(make_replica("a"))

    assert names(registry) == ["a"]


def test_a_farewell_takes_effect_at_once_and_may_be_repeated() -> None:
    registry = Registry()
    registry.heartbeat(make_replica("a"))
    registry.leave(make_replica("a").epoch)
    version = registry.membership().version

    registry.leave(make_replica("a").epoch)

    assert names(registry) == []
    assert registry.membership().version == version


def test_a_restarted_replica_is_another_member_until_its_former_self_falls_silent() -> None:
    clock = ManualClock()
    registry = Registry(ttl_s=TTL_S, clock=clock)
    old = make_replica("a")
    new = replace(old, epoch=make_replica("b").epoch)
    registry.heartbeat(old)

    clock.advance(2)
    registry.heartbeat(new)
    assert registry.membership().replicas == (old, new)
    clock.advance(2)

    assert registry.membership().replicas == (new,)


async def test_a_watch_wakes_when_something_changes() -> None:
    registry = Registry()
    registry.heartbeat(make_replica("a"))
    seen = registry.membership()
    watching = asyncio.create_task(registry.watch(seen.incarnation, seen.version, timeout_s=60))
    await asyncio.sleep(0)
    assert not watching.done()

    registry.heartbeat(make_replica("b"))

    changed = await watching
    assert [info.replica_id for info in changed.replicas] == ["a", "b"]


async def test_every_watcher_hears_of_a_change() -> None:
    registry = Registry()
    seen = registry.membership()
    watching = [
        asyncio.create_task(registry.watch(seen.incarnation, seen.version, timeout_s=60))
        for _ in range(3)
    ]
    await asyncio.sleep(0)

    registry.heartbeat(make_replica("a"))

    assert {len(one.replicas) for one in await asyncio.gather(*watching)} == {1}


async def test_a_watch_answers_with_what_is_known_when_nothing_happens() -> None:
    registry = Registry()
    registry.heartbeat(make_replica("a"))
    seen = registry.membership()

    unchanged = await registry.watch(seen.incarnation, seen.version, timeout_s=0.01)

    assert unchanged.version == seen.version
    assert unchanged.replicas == seen.replicas


async def test_who_watches_on_from_a_change_sleeps_until_the_next() -> None:
    registry = Registry()
    registry.heartbeat(make_replica("a"))
    first = registry.membership()
    watching = asyncio.create_task(registry.watch(first.incarnation, first.version, timeout_s=60))
    await asyncio.sleep(0)
    registry.heartbeat(make_replica("b"))
    second = await watching

    watching = asyncio.create_task(registry.watch(second.incarnation, second.version, timeout_s=60))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not watching.done()
    registry.heartbeat(make_replica("c"))

    assert len((await watching).replicas) == 3


async def test_a_watch_that_times_out_notices_a_silent_replica() -> None:
    clock = ManualClock()
    registry = Registry(ttl_s=TTL_S, clock=clock)
    registry.heartbeat(make_replica("a"))
    seen = registry.membership()
    watching = asyncio.create_task(registry.watch(seen.incarnation, seen.version, timeout_s=0.01))
    await asyncio.sleep(0)

    clock.advance(TTL_S + 1)

    assert (await watching).replicas == ()


@pytest.mark.parametrize("what", ["another version", "another incarnation", "no incarnation"])
async def test_a_watcher_that_is_behind_is_answered_at_once(what: str) -> None:
    registry, other = Registry(), Registry()
    registry.heartbeat(make_replica("a"))
    seen = registry.membership()
    incarnation, version = {
        "another version": (seen.incarnation, seen.version - 1),
        "another incarnation": (other.membership().incarnation, seen.version),
        "no incarnation": (None, seen.version),
    }[what]

    async with asyncio.timeout(120):
        answer = await registry.watch(incarnation, version, timeout_s=600)

    assert answer == replace(seen, age_s=answer.age_s)


def test_a_restarted_registry_is_young_empty_and_another_incarnation() -> None:
    clock = ManualClock()
    first = Registry(clock=clock)
    first.heartbeat(make_replica("a"))
    clock.advance(100)

    second = Registry(clock=clock)
    clock.advance(1)

    assert first.membership().age_s == 101
    assert second.membership().age_s == 1
    assert second.membership().replicas == ()
    assert second.membership().incarnation != first.membership().incarnation


def test_those_who_wait_can_see_how_far_a_replica_is_and_for_how_long() -> None:
    clock = ManualClock()
    registry = Registry(clock=clock)
    registry.report_starting(starting("a", 0.1))
    clock.advance(2.0)

    registry.report_starting(starting("a", 0.6))

    assert registry.membership().starting == (replace(starting("a", 0.6), stage_s=2.0),)


def test_a_new_stage_is_news_and_progress_is_not() -> None:
    registry = Registry()
    registry.report_starting(starting("a", 0.1))
    before = registry.membership().version

    registry.report_starting(starting("a", 0.6))
    assert registry.membership().version == before

    registry.report_starting(starting("a", 0.6).at("starting"))
    assert registry.membership().version > before


def test_a_replica_that_serves_is_no_longer_starting_whatever_comes_late() -> None:
    registry = Registry()
    registry.report_starting(starting("a", 0.9))

    registry.heartbeat(make_replica("a"))
    registry.report_starting(starting("a", 0.9))

    assert registry.membership().starting == ()


def test_a_replica_that_died_while_it_started_is_forgotten() -> None:
    clock = ManualClock()
    registry = Registry(clock=clock)
    registry.report_starting(starting("dead", 0.3))

    clock.advance(STARTING_TTL_S + 1)
    registry.report_starting(starting("its successor", 0.1))

    assert registry.membership().starting == (starting("its successor", 0.1),)


def test_a_farewell_is_told_for_a_while_and_silence_is_none() -> None:
    clock = ManualClock()
    registry = Registry(ttl_s=1.0, clock=clock)
    said, silent = make_replica("said"), make_replica("silent")
    for info in (said, silent):
        registry.heartbeat(info)

    registry.leave(said.epoch)
    clock.advance(2.0)

    told = registry.membership()
    assert (told.replicas, told.left) == ((), (said.epoch,))
    registry.leave(silent.epoch)  # after it was dropped: news all the same
    assert registry.membership().version > told.version
    clock.advance(LEFT_FOR_S + 1)
    assert registry.membership().left == ()


def test_the_last_replica_that_takes_requests_in_a_role_is_not_spared() -> None:
    clock = ManualClock()
    registry = Registry(ttl_s=TTL_S, clock=clock)
    first, second = make_replica("a"), make_replica("b")
    registry.heartbeat(replace(make_replica("c"), model="another"))
    registry.heartbeat(make_replica("d", role=Role.PREFILL))
    for info in (first, second):
        registry.heartbeat(info)

    assert registry.spare(first.epoch) == ""
    assert registry.spare(second.epoch).startswith("b is the last decode replica that takes")
    registry.heartbeat(first)  # it stays after all
    assert registry.spare(second.epoch) == ""
    clock.advance(TTL_S + 1)
    registry.heartbeat(second)
    assert registry.spare(second.epoch)  # the other has died
    assert registry.spare(second.epoch, may_be_last=True) == ""
    assert "does not know it" in registry.spare(first.epoch)


def test_a_beat_keeps_alive_whoever_has_said_all_of_it() -> None:
    clock = ManualClock()
    registry = Registry(ttl_s=TTL_S, clock=clock)
    info = make_replica("a")
    assert not registry.beat(info.epoch)
    registry.heartbeat(info)
    before = registry.membership().version

    for _ in range(4):
        clock.advance(TTL_S - 1)
        assert registry.beat(info.epoch)

    assert registry.membership().replicas == (info,)
    assert registry.membership().version == before
    registry.leave(info.epoch)
    assert not registry.beat(info.epoch)


def test_who_was_spared_is_to_say_again_that_it_is_ready() -> None:
    registry = Registry()
    info = make_replica("a")
    registry.heartbeat(info)
    assert not registry.spare(info.epoch, may_be_last=True)

    assert not registry.beat(info.epoch)
    registry.heartbeat(info)

    assert registry.beat(info.epoch)
    assert registry.membership().replicas == (info,)


def test_a_farewell_and_heartbeats_hold_in_the_order_in_which_they_were_said() -> None:
    registry, info = Registry(), make_replica("a")
    registry.heartbeat(info, telling=1)
    registry.leave(info.epoch, telling=3)
    registry.heartbeat(info, telling=2)
    assert not names(registry)

    registry.heartbeat(info, telling=5)  # it could not leave
    registry.leave(info.epoch, telling=4)
    assert names(registry) == ["a"]

    registry.leave(info.epoch, telling=6)
    assert not names(registry)


async def test_watchers_hear_of_a_silence_when_it_is_one_however_patient_they_are() -> None:
    began, stands_still = monotonic(), True
    registry = Registry(ttl_s=0.02, clock=lambda: began if stands_still else monotonic())
    registry.heartbeat(make_replica("silent"))
    seen = registry.membership()
    assert seen.replicas
    stands_still = False

    async with asyncio.timeout(120):
        after = await registry.watch(seen.incarnation, seen.version, timeout_s=600)

    assert after.replicas == ()


def test_watchers_wait_longer_once_nothing_is_new() -> None:
    clock = ManualClock()
    registry = Registry(clock=clock)
    registry.heartbeat(make_replica("a"))
    after_news = registry.patience_s
    clock.advance(60)
    registry.heartbeat(make_replica("a"))
    when_calm = registry.patience_s
    registry.report_starting(starting("b", 0.1))

    assert registry.patience_s == after_news < when_calm < WATCH_TIMEOUT_S
