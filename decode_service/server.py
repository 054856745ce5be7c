"""The gRPC server of the decode role: `baton.replica.v1.Decode`, one worker behind it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc.aio

from baton.core.errors import InvalidRequest
from baton.core.ids import RequestId
from baton.core.messages import TokenUpdate
from baton.decode_service.session import Frame, GatewaySession
from baton.decode_service.worker import DecodeWorker
from baton.proto import replica_pb2 as pb
from baton.proto.capacity_wire import capacity_to_proto, demand_from_proto
from baton.proto.generate_wire import generate_from_proto, parked_to_proto, take_from_proto
from baton.proto.replica_pb2_grpc import DecodeServicer
from baton.proto.token_update_wire import update_to_proto
from baton.replica_core.gateway_stream import gateway_session


class DecodeGrpc(DecodeServicer):
    def __init__(self, worker: DecodeWorker) -> None:
        self._worker = worker

    async def Session(
        self,
        request_iterator: AsyncIterator[pb.GatewayFrame],
        context: grpc.aio.ServicerContext[pb.GatewayFrame, pb.DecodeFrame],
    ) -> AsyncIterator[pb.DecodeFrame]:
        async with gateway_session(self._worker, request_iterator, context, self._read) as session:
            while (frame := await session.next_frame()) is not None:
                yield _to_proto(frame)

    async def TakeStream(
        self,
        request: pb.TakeStreamRequest,
        context: grpc.aio.ServicerContext[pb.TakeStreamRequest, pb.ParkedStream],
    ) -> pb.ParkedStream:
        parked = self._worker.take_stream(take_from_proto(request))
        if parked is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "nothing is known of that stream")
        return parked_to_proto(parked)

    async def _read(self, session: GatewaySession, frames: AsyncIterator[pb.GatewayFrame]) -> None:
        async for frame in frames:
            match frame.WhichOneof("frame"):
                case "generate":
                    self._generate(session, frame.generate)
                case "cancel":
                    cancel = frame.cancel
                    self._worker.cancel(
                        RequestId(cancel.request_id),
                        cancel.attempt,
                        cancel.num_delivered,
                        is_finished=cancel.is_finished,
                    )
                case "demand":
                    self._worker.observe(session, demand_from_proto(frame.demand))
                case _:
                    continue  # a newer gateway's frame: nothing we know how to do

    def _generate(self, session: GatewaySession, message: pb.GenerateRequest) -> None:
        """An unknown option of a newer gateway fails that request, not the stream."""
        try:
            request = generate_from_proto(message)
        except InvalidRequest as error:
            request_id = RequestId(message.request_id)
            update = TokenUpdate(request_id=request_id, attempt=message.attempt, error=error)
            session.put(update)
        else:
            self._worker.generate(session, request)


def _to_proto(frame: Frame) -> pb.DecodeFrame:
    return pb.DecodeFrame(
        updates=[update_to_proto(update) for update in frame.updates],
        capacity=None if frame.capacity is None else capacity_to_proto(frame.capacity),
    )
