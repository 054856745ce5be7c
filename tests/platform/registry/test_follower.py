"""Whoever follows the registry by what changes knows what a whole list would have said."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gateway.fleet.known_replicas import LAYOUT, make_replica

from baton.core.clock import ManualClock
from baton.core.ids import Epoch, ReplicaId
from baton.core.kv_layout import KvLayout
from baton.core.replicas import Membership, MembershipUpdate, ReplicaInfo, Role, StartingReplica
from baton.gateway.fleet.membership.membership import merge
from baton.platform.registry.follower import Follower
from baton.platform.registry.journal import Journal
from baton.platform.registry.registry import Registry
from baton.proto.membership_wire import layout_id, update_from_proto, update_to_proto

NAMES = "abc"
LAYOUTS = tuple(replace(LAYOUT, num_layers=number) for number in (1, 2))

names = st.sampled_from(NAMES)
steps = st.one_of(
    st.tuples(st.just("heartbeat"), names, st.booleans(), st.sampled_from(LAYOUTS)),
    st.tuples(st.just("starting"), names, st.sampled_from(("importing", "loading", "failed"))),
    st.tuples(st.just("leave"), names),
    st.tuples(st.just("time"), st.sampled_from((0.5, 4.0, 70.0))),
    st.tuples(st.just("restart")),
    st.tuples(st.just("take an old answer"), st.integers(0, 20)),
    st.tuples(st.just("lose")),
    st.tuples(st.just("ask"), st.frozensets(names)),
)


@dataclass
class Cluster:
    """A registry that remembers two who went, and two gateways: one is told what changes."""

    clock: ManualClock = field(default_factory=ManualClock)
    follower: Follower = field(default_factory=Follower)
    by_updates: dict[Epoch, ReplicaInfo] = field(default_factory=dict)
    by_snapshots: dict[Epoch, ReplicaInfo] = field(default_factory=dict)
    answers: list[MembershipUpdate] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.registry = Registry(max_gone=2, clock=self.clock)

    def step(self, kind: str, *what: object) -> None:
        match kind, *what:
            case "heartbeat", str(name), bool(is_ready), KvLayout() as layout:
                info = make_replica(name, is_ready=is_ready)
                self.registry.heartbeat(replace(info, layout=layout))
            case "starting", str(name), str(stage):
                one = StartingReplica(replica_id=ReplicaId(name), role=Role.DECODE, stage=stage)
                is_over = stage == "failed"
                self.registry.report_starting(
                    one.failed("why", is_final=True) if is_over else one.at(stage, 0.5)
                )
            case "leave", str(name):
                self.registry.leave(make_replica(name).epoch)
            case "time", float(seconds):
                self.clock.advance(seconds)
            case "restart", *_:
                self.restart()
            case "take an old answer", int(number) if self.answers:
                self.take_old(self.answers[number % len(self.answers)])
            case "lose", *_:
                self.answer()
            case "ask", frozenset(heard):
                self.ask(frozenset(make_replica(name).epoch for name in heard))

    def take_old(self, old: MembershipUpdate) -> None:
        before = self.follower.incarnation, self.follower.version
        told = self.follower.take(old)
        after = self.follower.incarnation, self.follower.version
        assert told is not None or after == before
        if before[0] == after[0]:
            assert after[1] >= before[1]
        else:
            assert old.since is None

    def answer(self) -> MembershipUpdate:
        follower = self.follower
        update = self.registry.update(follower.incarnation, follower.version)
        known = {layout_id(layout): layout for layout in follower.layouts}
        self.answers.append(update_from_proto(update_to_proto(update), known))
        return self.answers[-1]

    def ask(self, heard: frozenset[Epoch]) -> None:
        told, whole = self.follower.take(self.answer()), self.registry.membership()
        assert told is not None
        assert plain(told) == plain(whole)
        rules = {"settled_after_s": whole.intervals.settled_after_s, "alive": heard}
        self.by_updates = merge(self.by_updates, told, **rules)  # type: ignore[arg-type]
        self.by_snapshots = merge(self.by_snapshots, whole, **rules)  # type: ignore[arg-type]
        assert self.by_updates == self.by_snapshots


def plain(known: Membership) -> object:
    """Without the order, farewells that were told before, and how long each stage has taken."""
    starting = {(one.replica_id, one.stage, one.failure) for one in known.starting}
    where = known.incarnation, known.version, known.age_s, known.intervals
    return {info.epoch: info for info in known.replicas}, starting, where


@settings(max_examples=60, deadline=None)
@given(st.lists(steps, max_size=30))
def test_updates_say_what_whole_lists_would_whatever_is_lost_repeated_or_late(
    taken: list[tuple[object, ...]],
) -> None:
    cluster = Cluster()
    for kind, *what in taken:
        cluster.step(str(kind), *what)
    cluster.ask(frozenset())


def test_a_layout_comes_once_and_an_update_names_only_who_changed() -> None:
    registry = Registry()
    for name in NAMES:
        registry.heartbeat(make_replica(name))
    whole = registry.update(None, -1)
    registry.leave(make_replica("b").epoch)
    registry.heartbeat(make_replica("a", is_ready=False))

    later = registry.update(whole.incarnation, whole.version)

    assert whole.layouts == (LAYOUT,)
    assert len(whole.replicas) == len(NAMES)
    assert (later.layouts, later.replicas) == ((), (make_replica("a", is_ready=False),))
    assert later.gone == later.left == (make_replica("b").epoch,)


def test_who_was_away_for_longer_than_the_registry_remembers_is_told_all_there_is() -> None:
    registry = Registry(max_gone=1)
    for name in NAMES:
        registry.heartbeat(make_replica(name))
    whole = registry.update(None, -1)
    registry.leave(make_replica("a").epoch)
    assert registry.update(whole.incarnation, whole.version).since == whole.version

    registry.leave(make_replica("b").epoch)

    assert registry.update(whole.incarnation, whole.version).since is None


def test_an_update_that_continues_what_is_not_known_here_is_not_taken() -> None:
    registry, follower = Registry(), Follower()
    whole = registry.update(None, -1)
    registry.heartbeat(make_replica("a"))
    later = registry.update(whole.incarnation, whole.version)

    assert follower.take(later) is None
    assert follower.take(whole) is not None
    assert follower.take(later) is not None
    assert follower.take(whole) is None  # it comes too late


def test_what_went_again_is_among_those_that_went_last() -> None:
    journal = Journal[str, int]()
    for version, name in enumerate("ab"):
        journal.put(name, 0, version)
    journal.pop("a", 2)
    journal.pop("b", 3)
    journal.put("a", 0, 4)
    journal.pop("a", 5)

    assert (journal.gone(2), journal.gone(3), journal.gone(5)) == (("b", "a"), ("a",), ())
