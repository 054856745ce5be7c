"""The prefill role on the wire: `baton.replica.v1.Prefill`, one worker behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

import grpc
import grpc.aio

from baton.core.errors import BatonError, InvalidRequest, LayoutMismatch, Overloaded
from baton.core.messages import PrefillGranted
from baton.prefill_service.worker import PrefillWorker
from baton.proto import replica_pb2 as pb
from baton.proto.replica_pb2_grpc import PrefillServicer
from baton.proto.wire import done_to_proto, granted_to_proto, prefill_from_proto


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
                    if isinstance(event, PrefillGranted):
                        yield pb.PrefillEvent(granted=granted_to_proto(event))
                    else:
                        yield pb.PrefillEvent(done=done_to_proto(event))
        except BatonError as error:
            await context.abort(_status(error), str(error))


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
