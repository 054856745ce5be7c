"""Resumable streams over gRPC: responses carry the stream's id and a sequence.

A client that is cut off calls ResumeGenerate or ResumeChat with the last sequence it has. Cut off
on purpose or by accident looks the same from here, so a client that wants no more says so with
EndStream. A stream that has sent nothing yet ends with its call: nobody knows its id.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any, TypeVar

import grpc.aio
from baton.core.errors import StreamNotFound
from baton.gateway.resumable.keeper import StreamKeeper, StreamReading
from baton.gateway.resumable.streams import owner_of
from baton.proto import inference_pb2 as pb

Context = grpc.aio.ServicerContext[Any, Any]

KINDS = (pb.GenerateResponse.__name__, pb.ChatResponse.__name__)

R = TypeVar("R", pb.GenerateResponse, pb.ChatResponse)


async def write_all(context: Context, responses: AsyncGenerator[R]) -> None:
    """A stream that ends with its connection."""
    async with aclosing(responses):
        async for response in responses:
            await context.write(response)


async def write_resumable(
    context: Context, responses: AsyncGenerator[R], keeper: StreamKeeper, kind: type[R]
) -> None:
    """A stream that outlives its connection. Raises Overloaded if there is no room for it."""
    reading = keeper.start(_encoded(responses), owner=_owner(context), kind=kind.__name__)
    await _write_reading(context, reading, kind)


async def write_rest(
    context: Context, request: pb.ResumeRequest, keeper: StreamKeeper, kind: type[R]
) -> None:
    """Raises StreamNotFound, InvalidRequest, or what the stream failed with."""
    owner, kinds = _owner(context), (kind.__name__,)
    reading = keeper.resume(
        request.stream_id, owner=owner, kinds=kinds, last_sequence=request.last_sequence
    )
    await _write_reading(context, reading, kind)


def end_stream(context: Context, request: pb.EndStreamRequest, keeper: StreamKeeper) -> None:
    """What is unknown, or somebody else's, is not theirs to end: they get the same answer."""
    with suppress(StreamNotFound):
        keeper.end(request.stream_id, owner=_owner(context), kinds=KINDS)


async def _write_reading(context: Context, reading: StreamReading, kind: type[R]) -> None:
    with reading:
        async for sequence, data in reading:
            response = kind.FromString(data)
            response.stream_id, response.sequence = reading.stream.id, sequence
            await context.write(response)


async def _encoded(responses: AsyncGenerator[R]) -> AsyncGenerator[bytes]:
    async with aclosing(responses):
        async for response in responses:
            yield response.SerializeToString()


def _owner(context: Context) -> bytes:
    authorization = dict(context.invocation_metadata() or ()).get("authorization")
    return owner_of(authorization if isinstance(authorization, str) else None)
