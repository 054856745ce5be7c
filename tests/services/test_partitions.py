"""A prefill and a decode replica that cannot reach each other, while all others reach both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import grpc
import grpc.aio
import pytest
from tests.gateway.fleet.scripted_replica import until
from tests.in_process_fleet import GREEDY, VOCAB_SIZE, Answer, Fleet, running_fleet
from tests.services.test_pulling import ask_at

from baton.core.ids import ReplicaId
from baton.engine.passes.echo import echo_output
from baton.proto import pulse
from baton.proto.channels import Channels
from baton.proto.pulse import PingTiming

PROMPT = list(range(3, 83))
P, D, OTHER = ReplicaId("prefill-1"), ReplicaId("decode-2"), ReplicaId("decode-3")


class Wire:
    """What goes from one replica to the other, and what comes back on the same connections."""

    def __init__(self) -> None:
        self.is_whole = asyncio.Event()
        self.is_whole.set()
        self.num_bytes = 0
        self._pumps: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def laid(self, channels: Channels, address: str) -> AsyncIterator[None]:
        """Connections that `channels` opens to `address` go over it. A cut is no end of them:
        packets get lost, and what was sent comes when it is whole again."""
        server = await asyncio.start_server(
            lambda *ends: self._join(address, *ends), "127.0.0.1", 0
        )
        port, new = server.sockets[0].getsockname()[1], channels.new

        def rerouted(to: str, *options: Any) -> grpc.aio.Channel:
            return new(f"127.0.0.1:{port}" if to == address else to, *options)

        channels.new = rerouted  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            channels.new = new  # type: ignore[method-assign]
            server.close()
            for pump in self._pumps:
                pump.cancel()
            await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _join(
        self, address: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        host, port = address.rsplit(":", 1)
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        for one, other in ((reader, far_writer), (far_reader, writer)):
            self._pumps.add(asyncio.create_task(self._pump(one, other)))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                await self.is_whole.wait()
                self.num_bytes += len(data)
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()


@asynccontextmanager
async def parting_fleet() -> AsyncIterator[tuple[Fleet, Sequence[Wire]]]:
    """One prefill replica and two decode replicas; the wires between it and the first of these."""
    async with (
        running_fleet(prefill=1, decode=2, ping_timing=PingTiming()) as fleet,
        AsyncExitStack() as laid,
    ):
        wires = (Wire(), Wire())
        for wire, near, far in zip(wires, (D, P), (P, D), strict=True):
            channels = fleet.replicas[near].worker.core.kv.peers.channels
            address = fleet.replicas[far].info.address
            await laid.enter_async_context(wire.laid(channels, address))
        yield fleet, wires
        for wire in wires:
            wire.is_whole.set()
        await fleet.assert_nothing_is_held()


def cut(wires: Sequence[Wire]) -> None:
    for wire in wires:
        wire.is_whole.clear()


async def ask_there(fleet: Fleet, prompt: Sequence[int]) -> Answer | Any:
    """At the decode replica that is parted from the prefill replica it is to ask."""
    return await ask_at(fleet, D, prompt, prefill=(fleet.replicas[P].info.endpoint,))


def holds_no_lease(fleet: Fleet, at: ReplicaId) -> bool:
    return not fleet.replicas[at].worker.core.kv.lease_ids


@pytest.fixture(autouse=True)
def _forgiving(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "AVOIDED_S", 0.0)


async def test_a_pair_that_is_parted_costs_its_own_handoffs_seconds_and_nobody_else_anything() -> (
    None
):
    async with parting_fleet() as (fleet, wires):
        before = await ask_there(fleet, PROMPT)
        assert before.receipt.prefill_replica == P
        assert wires[0].num_bytes > 0  # it did go over the wire

        cut(wires)
        parted, elsewhere = await asyncio.gather(
            ask_there(fleet, [9, *PROMPT]),
            ask_at(fleet, OTHER, [8, *PROMPT], prefill=(fleet.replicas[P].info.endpoint,)),
        )

        assert parted.tokens == echo_output([9, *PROMPT], GREEDY.max_tokens, VOCAB_SIZE)
        assert any("prefill-1 answers nobody" in note for note in parted.receipt.notes)
        assert parted.receipt.prefill_replica == ""
        assert (elsewhere.receipt.prefill_replica, elsewhere.receipt.notes) == (P, ())

        for wire in wires:
            wire.is_whole.set()
        answers: list[Any] = []

        async def is_back() -> bool:
            answers.append(await ask_there(fleet, [len(answers) + 10, *PROMPT]))
            return bool(answers[-1].receipt.prefill_replica == P)

        async with asyncio.timeout(120):
            while not await is_back():
                await asyncio.sleep(0.05)
        for number, answer in enumerate(answers):
            prompt = [number + 10, *PROMPT]
            assert answer.tokens == echo_output(prompt, GREEDY.max_tokens, VOCAB_SIZE)


async def test_a_pair_parted_in_the_middle_of_a_handoff_holds_nothing_while_it_is_parted() -> None:
    async with parting_fleet() as (fleet, wires):
        await ask_there(fleet, PROMPT)  # all connections are there
        with fleet.standing_still(P) as engine:
            asking = asyncio.create_task(ask_there(fleet, [9, *PROMPT]))
            await until(lambda: engine.request_ids)
            cut(wires)
            answer = await asking

        assert answer.tokens == echo_output([9, *PROMPT], GREEDY.max_tokens, VOCAB_SIZE)
        assert any("prefill-1 answers nobody" in note for note in answer.receipt.notes)
        for replica_id in (D, P):  # P's keepalive finds the connection dead
            await until(partial(holds_no_lease, fleet, replica_id))
