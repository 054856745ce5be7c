"""A decode replica that says what it is told to say, over real gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
import grpc.aio
from tests.gateway.fleet.known_replicas import make_replica
from tests.partial_replica import PartialReplica

from baton.core.clock import Clock, monotonic
from baton.core.ids import Epoch, RequestId
from baton.core.messages import GenerateRequest, Receipt, TokenUpdate
from baton.core.replicas import Capacity, Membership, ReplicaInfo
from baton.core.sampling import FinishReason
from baton.gateway.fleet.dispatch import ReplicaDispatcher
from baton.proto import replica_pb2 as pb
from baton.proto.capacity_wire import capacity_to_proto
from baton.proto.channel_options import SERVER_OPTIONS
from baton.proto.channels import Channels
from baton.proto.generate_wire import generate_from_proto
from baton.proto.pulse import PingTiming
from baton.proto.replica_pb2_grpc import (
    DecodeServicer,
    add_DecodeServicer_to_server,
    add_ReplicaServicer_to_server,
)
from baton.proto.token_update_wire import update_to_proto
from baton.router.placer import Routing
from baton.router.policies.cost import Cost

SETTLED_AGE_S = 60.0
NOBODYS = RequestId("of nobody")
IMPATIENT = PingTiming(ask_after_s=0.02, answer_s=0.2)
PATIENT = PingTiming(answer_s=60.0)
"""A busy machine takes its time, and is not silent."""


class Cut(Exception):
    """Part of a script: the stream breaks here."""


Step = TokenUpdate | Cut
Script = Callable[[GenerateRequest], list[Step]]


def update(
    request: GenerateRequest,
    *tokens: int,
    finish: FinishReason | None = None,
    receipt: Receipt | None = None,
    error: Exception | None = None,
) -> TokenUpdate:
    return TokenUpdate(
        request_id=request.request_id,
        attempt=request.attempt,
        tokens=tokens,
        finish_reason=finish,
        receipt=receipt,
        error=error,
    )


def answers(*tokens: int) -> Script:
    return lambda request: [update(request, *tokens, finish=FinishReason.LENGTH, receipt=Receipt())]


def breaks_after(*tokens: int) -> Script:
    def script(request: GenerateRequest) -> list[Step]:
        return [update(request, *tokens), Cut()]

    return script


def fails_with(error: Exception) -> Script:
    return lambda request: [update(request, error=error)]


def silent(request: GenerateRequest) -> list[Step]:
    return []


class ScriptedReplica(DecodeServicer, PartialReplica):
    """Answers the n-th request with the n-th script, and with the last one from then on."""

    def __init__(self, name: str, *scripts: Script, max_open: int = 8) -> None:
        self.info = make_replica(name, max_open=max_open)
        self.received: list[GenerateRequest] = []
        self.cancelled: list[tuple[str, int, int]] = []
        self.num_sessions = 0
        self._scripts = scripts
        self.num_said = 0
        self.capacity = Capacity(max_open=max_open)
        """What it says of itself with each frame."""
        self._outgoing: asyncio.Queue[Step] = asyncio.Queue()
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        self.may_proceed = asyncio.Event()
        """While it is not set the replica stands still: nobody is answered."""
        self.may_proceed.set()
        add_DecodeServicer_to_server(self, self._server)
        add_ReplicaServicer_to_server(self, self._server)

    async def start(self) -> None:
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        self.info = replace(self.info, address=f"127.0.0.1:{port}")

    async def stop(self) -> None:
        await self._server.stop(None)

    async def TakeStream(
        self, request: pb.TakeStreamRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> pb.ParkedStream:
        await context.abort(grpc.StatusCode.NOT_FOUND, "nothing is remembered here")

    async def Session(
        self,
        request_iterator: AsyncIterator[pb.GatewayFrame],
        context: grpc.aio.ServicerContext[pb.GatewayFrame, pb.DecodeFrame],
    ) -> AsyncIterator[pb.DecodeFrame]:
        self.num_sessions += 1
        self._outgoing = asyncio.Queue()
        await anext(request_iterator)  # hello
        reader = asyncio.create_task(self._read(request_iterator))
        try:
            yield self._frame()
            while not isinstance(step := await self._outgoing.get(), Cut):
                yield self._frame(step)
                self.num_said += 1
        finally:
            reader.cancel()

    async def Ping(
        self,
        request: pb.PingRequest,
        context: grpc.aio.ServicerContext[pb.PingRequest, pb.PingReply],
    ) -> pb.PingReply:
        await self.may_proceed.wait()
        return pb.PingReply()

    def say(self, step: Step) -> None:
        self._outgoing.put_nowait(step)

    def cut(self) -> None:
        """Break the stream."""
        self.say(Cut())

    def offer(self, max_open: int, *, num_queued_tokens: int = 0) -> None:
        """Tell the gateway that it may have so many requests open here."""
        self.capacity = replace(
            self.capacity, max_open=max_open, num_queued_tokens=num_queued_tokens
        )
        self.say_capacity()

    def say_capacity(self) -> None:
        self.say(TokenUpdate(request_id=NOBODYS, attempt=1))

    def drain(self) -> None:
        """Tell the gateway that this replica is to become empty."""
        self.capacity = replace(self.capacity, is_draining=True)
        self.say_capacity()

    def _frame(self, *updates: TokenUpdate) -> pb.DecodeFrame:
        return pb.DecodeFrame(
            updates=[update_to_proto(one) for one in updates],
            capacity=capacity_to_proto(self.capacity),
        )

    async def _read(self, frames: AsyncIterator[pb.GatewayFrame]) -> None:
        async for frame in frames:
            if frame.HasField("generate"):
                request = generate_from_proto(frame.generate)
                script = self._scripts[min(len(self.received), len(self._scripts) - 1)]
                self.received.append(request)
                for step in script(request):
                    self.say(step)
            elif frame.HasField("cancel"):
                cancel = frame.cancel
                self.cancelled.append((cancel.request_id, cancel.attempt, cancel.num_delivered))


def snapshot(*infos: ReplicaInfo) -> Membership:
    """Of a registry that everybody had time to report to."""
    return Membership(incarnation=Epoch("registry"), version=1, age_s=SETTLED_AGE_S, replicas=infos)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


@asynccontextmanager
async def dispatching_to(
    *replicas: ScriptedReplica,
    max_waiting: int = 8,
    no_replica_grace_s: float = 60.0,
    clock: Clock = monotonic,
    channels: Channels | None = None,
) -> AsyncIterator[ReplicaDispatcher]:
    """A dispatcher that is connected to `replicas`."""
    dispatcher = ReplicaDispatcher(
        Routing(Cost()),
        max_waiting=max_waiting,
        no_replica_grace_s=no_replica_grace_s,
        clock=clock,
        channels=channels or Channels(ping_timing=PATIENT),
    )
    try:
        for replica in replicas:
            await replica.start()
        await dispatcher.fleet.apply(snapshot(*(replica.info for replica in replicas)))
        await until(lambda: len(dispatcher.fleet.connected) == len(replicas))
        yield dispatcher
    finally:
        await dispatcher.fleet.close()
        for replica in replicas:
            await replica.stop()
