"""Resumable streams over gRPC: responses carry the stream's id and a sequence.

A client that was disconnected calls ResumeGenerate or ResumeChat with its last sequence. The
gateway cannot tell a client that left from one that lost its connection, so a client that wants no
more calls EndStream. A stream that has sent nothing yet ends with its call, since no client knows
its id.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Generic, TypeVar

from baton.core.errors import StreamNotFound
from baton.core.ids import new_request_id
from baton.core.parking import TakeStream
from baton.gateway.access.api_keys import Caller
from baton.gateway.grpc.call_timeouts import CallTimeouts, Context
from baton.gateway.requests.gateway import Gateway
from baton.gateway.resumable.keeper import StreamReading
from baton.gateway.resumable.parked_request import ParkedRequest, order_of
from baton.gateway.resumable.streams import new_stream_id, owner_of, unknown_stream
from baton.proto import inference_pb2 as pb

KINDS = (pb.GenerateResponse.__name__, pb.ChatResponse.__name__)

R = TypeVar("R", pb.GenerateResponse, pb.ChatResponse)
Q = TypeVar("Q", pb.GenerateRequest, pb.ChatRequest)


class StreamWriter(Generic[R]):
    """Writes one call's responses."""

    def __init__(self, context: Context, timeouts: CallTimeouts, kind: type[R]) -> None:
        self._context = context
        self._timeouts = timeouts
        self._keeper = timeouts.gateway.keeper
        self._kind: type[R] = kind

    async def write_all(self, responses: AsyncGenerator[R]) -> None:
        """Write a stream that ends with its connection."""
        async with aclosing(responses):
            async for response in responses:
                await self._timeouts.write(self._context, response)

    async def write_resumable(
        self, request: Q, caller: Caller, respond: Callable[[Q, Caller], AsyncGenerator[R]]
    ) -> None:
        """Write a stream that outlives its connection, and its gateway. Raises Overloaded if there
        is no room for it."""
        request.request_id = request.request_id or new_request_id()
        owner, stream_id = _owner(self._context), new_stream_id()
        order = ParkedRequest(
            kind=self._kind.__name__,
            request_id=request.request_id,
            created=0,
            body=request.SerializeToString(),
        )
        caller = replace(caller, parking=order.parking(stream_id, owner))
        await self._write_reading(self._begin(0, stream_id, respond(request, caller)))

    async def write_rest(
        self,
        request: pb.ResumeRequest,
        kind: type[Q],
        caller: Caller,
        respond: Callable[[Q, Caller], AsyncGenerator[R]],
    ) -> None:
        """Raises StreamNotFound, InvalidRequest, or what the stream failed with."""
        owner, kinds = _owner(self._context), (self._kind.__name__,)
        stream_id, last_sequence = request.stream_id, request.last_sequence
        reading = await self._keeper.find(
            stream_id, owner=owner, kinds=kinds, last_sequence=last_sequence
        )
        if reading is None:
            with self._keeper.takeovers.begin(stream_id, owner) as held:
                parked = await self._timeouts.gateway.dispatcher.take_stream(
                    TakeStream(stream_id, owner, kinds)
                )
                order = order_of(parked, kinds=kinds)
                if order is None or parked is None:
                    raise unknown_stream()
                caller = replace(caller, parking=parked.request.parking, parked=parked)
                begun_again = respond(kind.FromString(order.body), caller)
                reading = self._begin(last_sequence, stream_id, begun_again)
                held()
        await self._write_reading(reading)

    def _begin(
        self, last_sequence: int, stream_id: str, responses: AsyncGenerator[R]
    ) -> StreamReading:
        return self._keeper.start(
            _encoded(responses),
            owner=_owner(self._context),
            kind=self._kind.__name__,
            stream_id=stream_id,
            last_sequence=last_sequence,
        )

    async def _write_reading(self, reading: StreamReading) -> None:
        with reading:
            async for sequence, data in reading:
                response = self._kind.FromString(data)
                response.stream_id, response.sequence = reading.stream.id, sequence
                await self._timeouts.write(self._context, response)


async def end_stream(context: Context, request: pb.EndStreamRequest, gateway: Gateway) -> None:
    """End a stream at whichever gateway has it. Unknown streams and those of others get the same
    answer. Raises Unavailable if a replica that may have it cannot be asked."""
    with suppress(StreamNotFound):
        await gateway.end_stream(request.stream_id, owner=_owner(context), kinds=KINDS)


async def _encoded(responses: AsyncGenerator[R]) -> AsyncGenerator[bytes]:
    async with aclosing(responses):
        async for response in responses:
            yield response.SerializeToString()


def _owner(context: Context) -> bytes:
    authorization = dict(context.invocation_metadata() or ()).get("authorization")
    return owner_of(authorization if isinstance(authorization, str) else None)
