"""Who waits for a peer asks it whether it answers; who does not, asks nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio
import pytest
from tests.gateway.fleet.scripted_replica import IMPATIENT, ScriptedReplica, until

from baton.core.errors import Unavailable
from baton.proto.channels import Channels
from baton.proto.pulse import Pulse
from baton.proto.replica_pb2_grpc import PeerServicer, add_PeerServicer_to_server


@asynccontextmanager
async def pulse_of(replica: ScriptedReplica) -> AsyncIterator[Pulse]:
    channels = Channels(patience=IMPATIENT)
    await replica.start()
    try:
        yield channels.pulse(replica.info.address)
    finally:
        await channels.close()
        await replica.stop()


async def test_who_waits_for_a_peer_that_stands_still_hears_that_it_answers_nobody() -> None:
    replica = ScriptedReplica("one")
    async with pulse_of(replica) as pulse:
        async with pulse.answers("one"):
            await asyncio.sleep(3 * IMPATIENT.ask_after_s)
        replica.goes_on.clear()

        with pytest.raises(Unavailable, match="one answers nobody"):
            async with pulse.answers("one"):
                await asyncio.sleep(60)

        assert pulse.is_silent
        replica.goes_on.set()
        async with pulse.answers("one"):
            await until(lambda: not pulse.is_silent)


async def test_a_peer_that_speaks_is_not_asked() -> None:
    replica = ScriptedReplica("one")
    replica.goes_on.clear()
    async with pulse_of(replica) as pulse, pulse.answers("one"):
        for _ in range(20):
            pulse.hear()
            await asyncio.sleep(IMPATIENT.answer_s / 20)

        assert not pulse.is_silent


class Peer(PeerServicer):
    """It knows no Ping."""

    Pull = PeerServicer.Pull


async def test_a_peer_of_an_earlier_version_answers_by_refusing() -> None:
    server = grpc.aio.server()
    add_PeerServicer_to_server(Peer(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channels = Channels(patience=IMPATIENT)
    async with channels.pulse(f"127.0.0.1:{port}").answers("one"):
        await asyncio.sleep(2 * IMPATIENT.answer_s)
    await channels.close()
    await server.stop(None)
