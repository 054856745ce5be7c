"""What a gateway hears of its registry, whichever way the answers come, and which are lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from tests.gateway.fleet.known_replicas import make_replica

from baton.core.clock import ManualClock
from baton.core.ids import Epoch
from baton.core.replicas import Membership
from baton.platform.cluster.registry import registry_watch
from baton.platform.cluster.registry.registry_port import RegistryPort
from baton.platform.cluster.registry.registry_watch import THROUGH_SERVE_S, RegistryWatch
from baton.platform.config.deployment import DeploymentConfig, override
from baton.platform.registry.registry import Registry
from baton.platform.security.config import SecurityConfig
from baton.proto import replica_pb2 as pb

PLAIN = SecurityConfig()
A, B, C, D = map(make_replica, "abcd")
NOTHING: tuple[Epoch | None, int] = (None, -1)


class Serve:
    """A handle of the registry there is, which keeps what comes through it."""

    def __init__(self) -> None:
        self.watch = self
        self.asked: list[pb.WatchRequest] = []
        self.loses_new_layouts = False
        self.registry = Registry(clock=ManualClock())  # nobody falls silent meanwhile
        self.port = RegistryPort(self.registry)

    async def restart(self) -> None:
        await self.port.stop()
        self.registry = Registry(clock=ManualClock())  # nobody falls silent meanwhile
        self.port = RegistryPort(self.registry)
        await self.port.start("127.0.0.1", PLAIN)

    async def remote(self, asked: bytes) -> bytes:
        self.asked.append(pb.WatchRequest.FromString(asked))
        answer = await self.port.watch(self.asked[-1])
        if self.loses_new_layouts and answer.HasField("since"):
            answer.ClearField("layouts")
        return answer.SerializeToString()


@pytest.fixture
async def serve(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Serve]:
    monkeypatch.setattr(registry_watch, "ANSWER_S", 60.0)  # a busy machine takes its time
    serve = Serve()
    await serve.restart()
    yield serve
    await serve.port.stop()


def line(handle: Any, model: str = "", clock: ManualClock | None = None) -> RegistryWatch:
    return RegistryWatch(handle, PLAIN, model, clock or ManualClock())


def at(known: Membership) -> tuple[Epoch, int]:
    return known.incarnation, known.version


async def test_a_gateway_never_hears_of_replicas_with_another_model(serve: Serve) -> None:
    config = DeploymentConfig()
    others = [
        override(config, change).model_identity
        for change in (
            {"model": "org/other"},
            {"attention_window": 99},
            {"load_format": "dummy"},
            {"adapters": {"sql": "/models/sql"}},
            {"adapters": {"sql": "/models/other"}},
        )
    ]
    infos = tuple(
        replace(make_replica(f"decode-{number}"), model=model)
        for number, model in enumerate([config.model_identity, *others])
    )
    for info in infos:
        serve.registry.heartbeat(info)

    assert (await line(serve, config.model_identity).watch(*NOTHING)).replicas == infos[:1]
    assert (await line(serve).watch(*NOTHING)).replicas == infos


async def test_what_changes_is_heard_of_the_port_and_serve_is_asked_now_and_then(
    serve: Serve,
) -> None:
    clock = ManualClock()
    gateway = line(serve, clock=clock)
    serve.registry.heartbeat(A)
    known = await gateway.watch(*NOTHING)
    for info in (B, C):
        serve.registry.heartbeat(info)
        known = await gateway.watch(*at(known))
    assert (known.replicas, len(serve.asked)) == ((A, B, C), 1)

    serve.registry.leave(A.epoch)
    clock.advance(THROUGH_SERVE_S)
    known = await gateway.watch(*at(known))

    assert (known.replicas, known.left) == ((B, C), (A.epoch,))
    assert [one.version for one in serve.asked] == [0, known.version - 2]


async def test_a_registry_that_was_started_anew_is_found_through_serve(serve: Serve) -> None:
    gateway = line(serve)
    serve.registry.heartbeat(A)
    known = await gateway.watch(*NOTHING)

    await serve.restart()
    serve.registry.heartbeat(B)
    later = await gateway.watch(*at(known))

    assert later.replicas == (B,)
    assert later.incarnation != known.incarnation
    serve.registry.heartbeat(C)
    assert (await gateway.watch(*at(later))).replicas == (B, C)
    assert len(serve.asked) == 2  # it has found the new port


async def test_who_could_not_take_an_answer_is_told_all_of_it_again(serve: Serve) -> None:
    gateway = line(serve)
    serve.registry.heartbeat(A)
    known = await gateway.watch(*NOTHING)
    serve.registry.heartbeat(B)
    await gateway.watch(*at(known))  # and is not taken

    serve.registry.heartbeat(C)
    again = await gateway.watch(*at(known))

    assert again.replicas == (A, B, C)


async def test_a_port_that_did_not_answer_is_tried_again_over_another_connection(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    met: list[asyncio.Event] = []
    host, port = serve.port.address.split(":")

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until it is dead: then nothing comes through, and nobody is told."""
        is_dead = asyncio.Event()
        met.append(is_dead)
        there, beyond = await asyncio.open_connection(host, int(port))
        await asyncio.gather(pump(reader, beyond, is_dead), pump(there, writer, is_dead))

    async with await asyncio.start_server(relay, "127.0.0.1", 0) as server:
        serve.port.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        clock = ManualClock()
        gateway = line(serve, clock=clock)
        known = await gateway.watch(*NOTHING)
        serve.registry.heartbeat(A)
        known = await gateway.watch(*at(known))
        met[0].set()

        for info, answer_s in ((B, 0.05), (C, 60.0), (D, 60.0)):
            monkeypatch.setattr(registry_watch, "ANSWER_S", answer_s)
            serve.registry.heartbeat(info)
            known = await gateway.watch(*at(known))
            clock.advance(THROUGH_SERVE_S / 2)

    assert (known.replicas, len(met), len(serve.asked)) == ((A, B, C, D), 2, 3)


async def pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_dead: asyncio.Event
) -> None:
    with suppress(ConnectionError):
        while some := await reader.read(1 << 16):
            if not is_dead.is_set():
                writer.write(some)
    writer.close()


async def test_after_an_answer_that_cannot_be_read_all_of_it_is_asked_for(serve: Serve) -> None:
    clock = ManualClock()
    gateway = line(serve, clock=clock)
    serve.registry.heartbeat(A)
    known = await gateway.watch(*NOTHING)
    other = replace(B, layout=replace(B.layout, num_layers=B.layout.num_layers + 1))
    serve.registry.heartbeat(other)
    serve.loses_new_layouts = True

    clock.advance(THROUGH_SERVE_S)
    with pytest.raises(KeyError):
        await gateway.watch(*at(known))
    clock.advance(THROUGH_SERVE_S)

    assert (await gateway.watch(*at(known))).replicas == (A, other)
