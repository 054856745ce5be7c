"""Heartbeats reach the registry's own port, and through Serve whenever that is not enough."""

from __future__ import annotations

import pickle
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from tests.gateway.fleet.known_replicas import make_replica
from tests.gateway.fleet.scripted_replica import until

from baton.core.clock import ManualClock
from baton.core.errors import Unavailable
from baton.core.ids import ReplicaId
from baton.core.replicas import ReplicaInfo, ReportIntervals, Role, StartingReplica
from baton.platform.cluster.registry import heartbeat_client, registry_port
from baton.platform.cluster.registry.heartbeat_client import AVOIDED_S, HeartbeatClient
from baton.platform.cluster.registry.registry_port import RegistryPort
from baton.platform.cluster.registry.remote_registry import RemoteRegistry
from baton.platform.registry.registry import Registry
from baton.platform.security.config import SecurityConfig
from baton.proto import replica_pb2 as pb
from baton.proto.channels import Channels
from baton.proto.membership_wire import heartbeat_from_proto, heartbeat_to_proto

PLAIN = SecurityConfig()
INFO = make_replica("decode-1")
STARTING = StartingReplica(
    replica_id=ReplicaId("decode-2"), role=Role.DECODE, stage="loading weights"
)


class Serve:
    """A handle of the registry, which counts what comes through it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.registry = Registry(clock=self.clock)
        self.port = RegistryPort(self.registry)
        self.told: list[ReplicaInfo] = []
        self.heartbeat = self

    async def remote(self, told: bytes) -> bytes:
        request = pb.HeartbeatRequest.FromString(told)
        answer = await self.port.heartbeat(request)
        if not answer.refusal:
            self.told.append(heartbeat_from_proto(request))
        return answer.SerializeToString()


@pytest.fixture
async def through_serve(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Serve]:
    monkeypatch.setattr(heartbeat_client, "ANSWER_S", 60.0)  # a busy machine takes its time
    served = Serve()
    await served.port.start("127.0.0.1", PLAIN)
    yield served
    await served.port.stop()


def remote(handle: Any, clock: ManualClock | None = None) -> RemoteRegistry:
    return RemoteRegistry(handle, heartbeats=HeartbeatClient(PLAIN, clock or ManualClock()))


async def test_only_news_goes_through_serve(through_serve: Serve) -> None:
    replica = remote(through_serve)
    for _ in range(3):
        await replica.heartbeat(INFO)
    assert through_serve.told == [INFO]

    draining = replace(INFO, is_ready=False)
    for _ in range(3):
        await replica.heartbeat(draining)
    assert through_serve.told == [INFO, draining]
    assert through_serve.registry.membership().replicas == (draining,)


UNKNOWN_FIELD = b"\xda\x3e\x03new"
"""As a later version may send it."""


async def test_a_replica_of_a_newer_version_is_heard_and_what_cannot_be_is_refused_in_words(
    through_serve: Serve,
) -> None:
    request = heartbeat_to_proto(INFO, telling=1)
    newer = pb.HeartbeatRequest.FromString(request.SerializeToString() + UNKNOWN_FIELD)
    newer.replica.MergeFromString(UNKNOWN_FIELD)
    answer = pb.HeartbeatReply.FromString(
        await through_serve.remote(newer.SerializeToString()) + UNKNOWN_FIELD
    )
    assert not answer.refusal and answer.address and answer.beat_s > 0
    assert through_serve.registry.membership().replicas == (INFO,)

    newer.replica.role = "a role of the next version"
    with pytest.raises(Unavailable, match="decode-1 is of another version than the registry"):
        await remote(Newer(through_serve, newer)).heartbeat(INFO)
    assert through_serve.registry.membership().replicas == (INFO,)
    with pytest.raises(Unavailable, match="decode-2 is of another version than the registry"):
        await remote(NewerStart(through_serve)).report_starting(STARTING)
    assert through_serve.registry.membership().starting == ()


class Newer:
    """A handle by which a newer replica tells something else."""

    def __init__(self, serve: Serve, told: pb.HeartbeatRequest) -> None:
        self.heartbeat, self._serve, self._told = self, serve, told

    async def remote(self, told: bytes) -> bytes:
        return await self._serve.remote(self._told.SerializeToString())


class NewerStart:
    """A handle by which a newer replica tells how far its start is."""

    def __init__(self, serve: Serve) -> None:
        self.report_starting, self._serve = self, serve

    async def remote(self, told: bytes) -> float | str:
        newer = pb.StartingReplica.FromString(told)
        newer.role = "a role of the next version"
        return self._serve.port.receive_starting(newer)


async def test_serve_hears_all_of_it_now_and_then_as_it_may_know_of_another_registry(
    through_serve: Serve,
) -> None:
    clock = ManualClock()
    replica = remote(through_serve, clock)
    for _ in range(2):
        await replica.heartbeat(INFO)
        clock.advance(ReportIntervals().whole_s / 2)
    await replica.heartbeat(INFO)

    assert len(through_serve.told) == 2


async def test_a_registry_that_does_not_know_it_is_told_all_of_it(through_serve: Serve) -> None:
    replica = remote(through_serve)
    await replica.heartbeat(INFO)
    through_serve.registry.leave(INFO.epoch)

    await replica.heartbeat(INFO)

    assert through_serve.told == [INFO, INFO]
    assert through_serve.registry.membership().replicas == (INFO,)


async def test_without_an_answer_heartbeats_go_through_serve_and_the_port_is_tried_again_later(
    through_serve: Serve,
) -> None:
    clock, address = ManualClock(), through_serve.port.address
    replica = remote(through_serve, clock)
    await replica.heartbeat(INFO)
    await through_serve.port.stop()
    through_serve.port.address = address  # it is told, and nobody listens there
    for _ in range(3):
        await replica.heartbeat(INFO)
    assert len(through_serve.told) == 4

    clock.advance(AVOIDED_S)
    again = RegistryPort(through_serve.registry)
    await again.start("127.0.0.1", PLAIN)
    through_serve.port.address = again.address
    await replica.heartbeat(INFO)  # nobody answers there: it hears of the new one
    await replica.heartbeat(INFO)
    await again.stop()
    assert len(through_serve.told) == 5


async def test_an_address_without_an_answer_is_left_alone_for_longer_each_time_and_forgiven(
    through_serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, tried = ManualClock(), list[float]()
    connect = Channels.new

    def new(channels: Channels, *where: Any) -> Any:
        tried.append(clock())
        return connect(channels, *where)

    monkeypatch.setattr(Channels, "new", new)
    replica = remote(through_serve, clock)
    await replica.heartbeat(INFO)
    with monkeypatch.context() as patch:
        patch.setattr(heartbeat_client, "ANSWER_S", -1.0)
        for _ in range(99):
            await replica.heartbeat(INFO)
            clock.advance(1.0)
    assert [later - one for one, later in pairwise(tried)] == [2, 4, 8, 16, AVOIDED_S, AVOIDED_S]

    clock.advance(AVOIDED_S)
    for _ in range(2):  # all of it is due, through Serve; then it is answered
        await replica.heartbeat(INFO)
    tried.clear()
    monkeypatch.setattr(heartbeat_client, "ANSWER_S", -1.0)
    for _ in range(4):
        await replica.heartbeat(INFO)
        clock.advance(1.0)
    assert len(tried) == 1  # by the connection that it had, and 2 s later


async def test_of_many_who_are_heard_seldom_one_that_ends_is_missed_all_the_same(
    through_serve: Serve,
) -> None:
    clock, registry = through_serve.clock, through_serve.registry
    others = [make_replica(f"decode-{number}") for number in range(2, 202)]
    for info in (*others, *others):  # at first each is told of those that were there before it
        registry.heartbeat(info)
    replica = remote(through_serve)
    for _ in range(2):
        rest_s = await replica.heartbeat(INFO)
    assert rest_s == registry.intervals.beat_s > 4
    await until(lambda: through_serve.port.num_held[INFO.epoch] == 1)
    clock.advance(4)
    assert registry.membership().replicas == (*others, INFO)

    assert replica.heartbeats is not None
    assert not replica.is_cut
    replica.heartbeats.hang_up()
    await until(lambda: not through_serve.port.num_held)
    clock.advance(3)
    assert INFO in registry.membership().replicas  # it may come again
    clock.advance(1)

    assert registry.membership().replicas == tuple(others)


async def test_one_that_was_taken_for_gone_is_told_so_by_the_call_that_it_holds(
    through_serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_port, "LOOK_S", 0.01)
    clock, registry, port = through_serve.clock, through_serve.registry, through_serve.port
    for number in range(2, 202):
        registry.heartbeat(make_replica(f"decode-{number}"))
    replica = remote(through_serve)
    for _ in range(2):
        rest_s = await replica.heartbeat(INFO)
    await until(lambda: port.num_held[INFO.epoch] == 1)

    clock.advance(4 * rest_s)
    await until(lambda: replica.is_cut and not port.num_held)
    await replica.heartbeat(INFO)

    assert registry.membership().replicas == (INFO,)


def test_each_rank_that_serves_has_a_client_of_its_own() -> None:
    line = HeartbeatClient(PLAIN)
    line.has_told(INFO, line.next_telling(), "127.0.0.1:1", ReportIntervals())
    assert pickle.loads(pickle.dumps(line)).__dict__ == HeartbeatClient(PLAIN).__dict__
