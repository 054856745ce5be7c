"""A gateway's stream to a replica of either role, from its hello to its end.

hello, of our epoch -> open_session -> what it says is read; what the session has is sent
                                    -> either ends -> close_session
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeVar

import grpc
import grpc.aio

from baton.core.errors import Unavailable
from baton.core.ids import Epoch
from baton.proto import replica_pb2 as pb
from baton.replica_core.replica_core import ReplicaCore

log = logging.getLogger(__name__)

Frames = AsyncIterator[pb.GatewayFrame]


class Session(Protocol):
    """The outgoing side of a replica's session with one gateway."""

    def end(self) -> None:
        """Send the final frames, then nothing more. Safe to repeat."""


S = TypeVar("S", bound=Session)


class SessionWorker(Protocol[S]):
    @property
    def core(self) -> ReplicaCore: ...

    def open_session(self, gateway_epoch: Epoch) -> S:
        """Raises Unavailable if all that came could only fail."""

    def close_session(self, session: S) -> None:
        """The stream is gone."""


@asynccontextmanager
async def gateway_session(
    worker: SessionWorker[S],
    frames: Frames,
    context: grpc.aio.ServicerContext[Any, Any],
    read: Callable[[S, Frames], Coroutine[Any, Any, None]],
) -> AsyncIterator[S]:
    """A session for as long as the stream; it ends when `read` or the gateway does."""
    hello = (await anext(frames)).hello
    if hello.replica_epoch != worker.core.epoch:
        detail = "another incarnation of this replica was meant"
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, detail)
    try:
        session = worker.open_session(Epoch(hello.gateway_epoch))
    except Unavailable as error:
        await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
    reader = asyncio.create_task(read(session, frames))
    reader.add_done_callback(lambda _: session.end())
    try:
        yield session
    finally:
        reader.cancel()
        worker.close_session(session)
        [outcome] = await asyncio.gather(reader, return_exceptions=True)
        if isinstance(outcome, Exception):
            log.error("a gateway's stream ended with %r", outcome)
