"""The gRPC server of the prefill role: `baton.replica.v1.Prefill`, one worker behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

import grpc
import grpc.aio

from baton.core.errors import (
    BatonError,
    InvalidRequest,
    LayoutMismatch,
    Overloaded,
)
from baton.core.messages import PrefillDone, PrefillGranted, PrefillProgress
from baton.prefill_service.open_prompts import Event
from baton.prefill_service.session import PrefillSession
from baton.prefill_service.worker import PrefillWorker
from baton.proto import replica_pb2 as pb
from baton.proto.capacity_wire import capacity_to_proto, demand_from_proto
from baton.proto.prefill_wire import done_to_proto, granted_to_proto, prefill_from_proto
from baton.proto.replica_pb2_grpc import PrefillServicer
from baton.replica_core.gateway_stream import gateway_session


class PrefillGrpc(PrefillServicer):
    def __init__(self, worker: PrefillWorker) -> None:
        self._worker = worker

    async def Prefill(
        self,
        request: pb.PrefillRequest,
        context: grpc.aio.ServicerContext[pb.PrefillRequest, pb.PrefillEvent],
    ) -> AsyncIterator[pb.PrefillEvent]:
        if request.sender_epoch != self._worker.core.epoch:
            detail = "another incarnation of this replica was meant"
            await context.abort(grpc.StatusCode.NOT_FOUND, detail)
        try:
            async with aclosing(self._worker.prefill(prefill_from_proto(request))) as events:
                async for event in events:
                    yield _event_to_proto(event)
        except BatonError as error:
            await context.abort(_status(error), str(error))

    async def Session(
        self,
        request_iterator: AsyncIterator[pb.GatewayFrame],
        context: grpc.aio.ServicerContext[pb.GatewayFrame, pb.Capacity],
    ) -> AsyncIterator[pb.Capacity]:
        async with gateway_session(self._worker, request_iterator, context, self._read) as session:
            while (capacity := await session.next_capacity()) is not None:
                yield capacity_to_proto(capacity)

    async def _read(self, session: PrefillSession, frames: AsyncIterator[pb.GatewayFrame]) -> None:
        async for frame in frames:
            if frame.HasField("demand"):
                self._worker.observe(session, demand_from_proto(frame.demand))


def _event_to_proto(event: Event) -> pb.PrefillEvent:
    match event:
        case PrefillProgress():
            return pb.PrefillEvent(progress=pb.PrefillProgress())
        case PrefillGranted():
            return pb.PrefillEvent(granted=granted_to_proto(event))
        case PrefillDone():
            return pb.PrefillEvent(done=done_to_proto(event))


def _status(error: BatonError) -> grpc.StatusCode:
    match error:
        case Overloaded():
            return grpc.StatusCode.RESOURCE_EXHAUSTED
        case LayoutMismatch():
            return grpc.StatusCode.FAILED_PRECONDITION
        case InvalidRequest():
            return grpc.StatusCode.INVALID_ARGUMENT
        case _:
            return grpc.StatusCode.UNAVAILABLE
