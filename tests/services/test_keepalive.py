"""A peer that is stopped, not dead, keeps its connections open and says nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import grpc
import pytest

from baton.proto import replica_pb2 as pb
from baton.proto.channel_options import CHANNEL_OPTIONS
from baton.proto.replica_pb2_grpc import PrefillStub

SERVER = """
import asyncio, grpc.aio
from baton.proto import replica_pb2 as pb
from baton.proto.channel_options import SERVER_OPTIONS
from baton.proto.replica_pb2_grpc import PrefillServicer, add_PrefillServicer_to_server

class Silent(PrefillServicer):
    async def Prefill(self, request, context):
        yield pb.PrefillEvent()
        await asyncio.sleep(600)

async def main():
    server = grpc.aio.server(options=SERVER_OPTIONS)
    add_PrefillServicer_to_server(Silent(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()

asyncio.run(main())
"""


@pytest.mark.wide
async def test_a_stopped_peer_is_noticed_by_its_silence_not_by_the_deadline() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True
    ) as peer:
        try:
            assert peer.stdout is not None
            address = f"127.0.0.1:{peer.stdout.readline().strip()}"
            async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
                call = PrefillStub(channel).Prefill(pb.PrefillRequest(), timeout=45)
                await call.read()
                os.kill(peer.pid, signal.SIGSTOP)

                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call.read()

                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        finally:
            peer.kill()
