"""No path that a stranger calls ends the server, nor a call that is under way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
from tests.raw_grpc import answer_to_path

from baton.proto import replica_pb2 as pb
from baton.proto.channels import listen, new_server
from baton.proto.replica_pb2_grpc import PeerServicer, PeerStub, add_PeerServicer_to_server

NO_TEXT = b"/baton.replica.v1.Pe\xe9r/Pull"


class Waiting(PeerServicer):
    """Ends each call when that is let happen."""

    def __init__(self) -> None:
        self.is_called, self.may_end = asyncio.Event(), asyncio.Event()

    async def Pull(self, request: Any, context: Any) -> AsyncIterator[pb.PullEvent]:
        self.is_called.set()
        await self.may_end.wait()
        yield pb.PullEvent()


async def test_a_path_that_is_no_text_is_refused_like_any_that_is_unknown() -> None:
    service, server = Waiting(), new_server()
    add_PeerServicer_to_server(service, server)
    target = f"127.0.0.1:{listen(server, '127.0.0.1:0')}"
    await server.start()
    async with grpc.aio.insecure_channel(target) as channel:
        begun = PeerStub(channel).Pull(pb.PullRequest())
        await service.is_called.wait()

        answers = [await answer_to_path(target, path) for path in (NO_TEXT, b"/un/known", NO_TEXT)]

        service.may_end.set()
        for call in (begun, PeerStub(channel).Pull(pb.PullRequest())):
            assert [event async for event in call] == [pb.PullEvent()]
    await server.stop(None)
    assert all(b"there is no such method" in answer for answer in answers)
