"""What a gateway believes of several registries, whichever of them are cut off, or begin anew."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gateway.fleet.known_replicas import make_replica
from tests.gateway.fleet.scripted_replica import until

from baton.core.clock import ManualClock
from baton.core.errors import Unavailable
from baton.core.ids import Epoch, ReplicaId
from baton.core.replicas import Membership, ReplicaInfo, Role, StartingReplica
from baton.gateway.fleet.membership.membership import merge
from baton.platform.registry import union_watch
from baton.platform.registry.registry import Registry
from baton.platform.registry.union import HEARD_S, MembershipUnion
from baton.platform.registry.union_watch import UnionWatch

T = TypeVar("T")

TICK_S = 0.5
LIMIT_S = 4.0
"""The silence after which a registry drops a replica, and a tick."""
NAMES = "abc"
REGISTRIES = range(3)


@dataclass
class Cluster:
    """Replicas, three registries and a gateway without a single stream, and who reaches whom."""

    clock: ManualClock = field(default_factory=ManualClock)
    cut: set[tuple[str, int]] = field(default_factory=set)
    """Replicas and the registries that they do not reach."""
    unheard: set[int] = field(default_factory=set)
    """Registries that the gateway does not reach."""
    stopped: set[int] = field(default_factory=set)
    """Registries that stand still, and whose clocks do."""
    view: dict[Epoch, ReplicaInfo] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.living = {name: make_replica(name) for name in NAMES}
        self.clocks = [ManualClock() for _ in REGISTRIES]
        self.registries = [Registry(clock=clock) for clock in self.clocks]
        self.union = MembershipUnion(self.clock)
        self.wait(10.0)

    def restart(self, number: int) -> None:
        self.registries[number] = Registry(clock=self.clocks[number])

    def die(self, name: str) -> ReplicaInfo:
        return self.living.pop(name)

    def wait(self, seconds: float) -> None:
        for _ in range(int(seconds / TICK_S)):
            self.clock.advance(TICK_S)
            for number in REGISTRIES:
                if number not in self.stopped:
                    self.clocks[number].advance(TICK_S)
                    self._tick(number)
            if (known := self.union.membership()) is not None:
                settled_s = known.intervals.settled_after_s
                self.view = merge(self.view, known, settled_after_s=settled_s)

    def _tick(self, number: int) -> None:
        registry = self.registries[number]
        for name, info in self.living.items():
            if (name, number) not in self.cut:
                registry.heartbeat(info)
        if number not in self.unheard:
            self.union.take(number, registry.membership())

    @property
    def names(self) -> set[str]:
        return {str(info.replica_id) for info in self.view.values()}


def test_a_replica_is_there_as_long_as_one_registry_hears_it() -> None:
    cluster = Cluster()
    cluster.cut = {("a", 0), ("a", 2), ("b", 1)}
    cluster.wait(60)
    assert cluster.names == set(NAMES)

    cluster.cut.add(("a", 1))
    cluster.wait(LIMIT_S)
    assert cluster.names == {"b", "c"}


def test_a_registry_that_ends_takes_nobody_along_and_one_that_is_new_takes_nobody_away() -> None:
    cluster = Cluster()
    cluster.cut = {("a", 1), ("a", 2)}  # the first alone hears it
    cluster.wait(10)
    cluster.cut.add(("a", 0))
    for _ in range(2):
        cluster.restart(0)
        cluster.wait(1.0)  # before it can have heard all
    assert cluster.names == set(NAMES)
    cluster.cut.clear()
    cluster.unheard = {1}
    cluster.wait(60)
    assert cluster.names == set(NAMES)


def test_a_gateway_that_hears_no_registry_for_a_minute_keeps_all() -> None:
    cluster = Cluster()
    cluster.unheard = {*REGISTRIES}
    cluster.wait(60)

    assert cluster.union.membership() is None
    assert cluster.names == set(NAMES)


def test_a_registry_that_stood_still_brings_back_who_is_gone_for_no_longer_than_its_limit() -> None:
    cluster = Cluster()
    cluster.stopped = {2}
    cluster.die("a")
    cluster.wait(3600)
    assert cluster.names == {"b", "c"}

    cluster.stopped.clear()
    cluster.wait(LIMIT_S)
    assert cluster.names == {"b", "c"}


def test_a_registry_that_begins_anew_after_a_minute_brings_back_nobody_who_is_gone() -> None:
    cluster = Cluster()
    cluster.unheard = {2}
    cluster.die("a")
    cluster.wait(60)

    cluster.restart(2)
    cluster.unheard.clear()
    cluster.wait(TICK_S)
    assert cluster.names == {"b", "c"}


def test_a_registry_that_begins_again_and_again_keeps_nobody_who_is_gone() -> None:
    cluster = Cluster()
    cluster.die("a")
    for _ in range(10):
        cluster.restart(0)
        cluster.wait(1.0)

    assert cluster.names == {"b", "c"}


def test_a_farewell_to_one_registry_is_enough() -> None:
    cluster = Cluster()
    leaving = cluster.die("a")
    cluster.cut = {("a", 1), ("a", 2)}
    cluster.registries[0].leave(leaving.epoch)
    cluster.wait(TICK_S)

    assert cluster.names == {"b", "c"}


def test_two_registries_are_added_to_one_and_replicas_report_to_them_one_after_the_other() -> None:
    cluster = Cluster()
    cluster.cut = {(name, number) for name in NAMES for number in (1, 2)}
    cluster.union = MembershipUnion(cluster.clock)  # a new gateway
    for number in REGISTRIES:
        cluster.restart(number)
    for name in NAMES:
        cluster.cut -= {(name, 1), (name, 2)}
        cluster.wait(10)
        assert cluster.names == set(NAMES)
    cluster.restart(0)
    cluster.cut = {(name, 0) for name in NAMES}
    cluster.wait(60)
    assert cluster.names == set(NAMES)


numbers = st.sampled_from((1, 2))
steps = st.one_of(
    st.tuples(st.just("cut"), st.sampled_from("bc"), st.sampled_from(REGISTRIES), st.booleans()),
    st.tuples(st.just("unheard"), numbers, st.booleans()),
    st.tuples(st.just("stopped"), numbers, st.booleans()),
    st.tuples(st.just("cut a"), numbers, st.booleans()),
    st.tuples(st.just("restart"), numbers),
    st.tuples(st.just("die"), st.sampled_from("bc")),
    st.tuples(st.just("wait"), st.sampled_from((0.5, 2.0, 5.0, 20.0))),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(steps, max_size=12))
def test_who_reaches_a_registry_that_is_heard_is_there_and_nobody_else(
    script: list[tuple[object, ...]],
) -> None:
    cluster = Cluster()
    for step in script:
        match step:
            case "cut", str(name), int(number), bool(is_cut):
                _put(cluster.cut, (name, number), is_cut)
            case "cut a", int(number), bool(is_cut):  # never from the first
                _put(cluster.cut, ("a", number), is_cut)
            case "unheard", int(number), bool(is_so):
                _put(cluster.unheard, number, is_so)
            case "stopped", int(number), bool(is_so):
                _put(cluster.stopped, number, is_so)
            case "restart", int(number):
                cluster.restart(number)
            case "die", str(name) if name in cluster.living:
                cluster.die(name)
            case "wait", float(seconds):
                for _ in range(int(seconds / TICK_S)):
                    cluster.wait(TICK_S)
                    assert "a" in cluster.names
    cluster.wait(HEARD_S + LIMIT_S)
    heard = {*REGISTRIES} - cluster.unheard - cluster.stopped
    assert cluster.names == {
        name
        for name in cluster.living
        if any((name, number) not in cluster.cut for number in heard)
    }


def _put(into: set[T], what: T, is_in: bool) -> None:
    into.add(what) if is_in else into.discard(what)


def test_registries_that_differ_about_one_replica_have_it_ready_and_a_failed_start_is_told() -> (
    None
):
    union, ready = MembershipUnion(ManualClock()), make_replica("a")
    starting = StartingReplica(replica_id=ReplicaId("b"), role=Role.DECODE, stage="loading")
    failed = starting.failed("no room", is_final=True)
    served = replace(starting, replica_id=ready.replica_id)
    union.take(0, told(replace(ready, is_ready=False), starting=(starting,)))
    union.take(1, told(ready, starting=(failed, served)))
    union.take(2, told())

    known = union.membership()

    assert known is not None
    assert (known.replicas, known.starting) == ((ready,), (failed,))
    assert union.membership() == known  # no other version where nothing is new


def told(*infos: ReplicaInfo, starting: tuple[StartingReplica, ...] = ()) -> Membership:
    return Membership(
        incarnation=Epoch("one"), version=1, age_s=60.0, replicas=infos, starting=starting
    )


class Hanging:
    """A registry that answers nobody."""

    async def watch(self, incarnation: Epoch | None, version: int) -> Membership:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")


async def test_a_registry_that_hangs_holds_up_none_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(union_watch, "ASK_S", 0.01)
    lively = Registry()
    watch = UnionWatch({"Registry": Hanging(), "Registry-1": lively})
    async with asyncio.timeout(60):  # only keeps a failing test from hanging
        lively.heartbeat(make_replica("a"))
        first = await watch.watch(None, -1)
        lively.heartbeat(make_replica("b"))
        second = await watch.watch(first.incarnation, first.version)
        monkeypatch.setattr(union_watch, "WATCH_S", 0.01)
        third = await watch.watch(second.incarnation, second.version)  # nothing is new
        await until(lambda: watch.told()[0]["trouble"])

    watch.close()
    assert [len(one.replicas) for one in (first, second, third)] == [1, 2, 2]
    assert third.version == second.version > first.version
    assert [one["is_heard"] for one in watch.told()] == [False, True]


async def test_where_no_registry_answers_a_gateway_is_told_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(union_watch, "ASK_S", 0.01)
    monkeypatch.setattr(union_watch, "WATCH_S", 0.1)
    watch = UnionWatch({"Registry": Hanging(), "Registry-1": Hanging()})

    with pytest.raises(Unavailable, match="Registry-1: TimeoutError"):
        await watch.watch(None, -1)
    watch.close()
