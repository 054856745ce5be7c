"""Keeps a long-lived stream to a replica open: whenever it breaks, it is opened again."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterable, Awaitable, Callable
from typing import TypeVar

import grpc
import grpc.aio

from baton.core.ids import ReplicaId
from baton.proto import replica_pb2 as pb
from baton.proto.channels import explain

log = logging.getLogger(__name__)

RECONNECT_S, MAX_RECONNECT_S = 0.2, 1.0
"""Seconds from a break to the next attempt, times 1.5 after each failure: hundreds of lost replicas
would otherwise take a core until the registry has dropped them."""
REFUSED_S = 2.0
"""Seconds between attempts where only a change of configuration or version helps."""
_REFUSALS = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNIMPLEMENTED)

F = TypeVar("F")


async def keep_open(
    replica_id: ReplicaId,
    pump: Callable[[], Awaitable[None]],
    was_open: Callable[[], bool],
    on_break: Callable[[str], None],
    *,
    is_secured: bool = False,
) -> None:
    """Run `pump` for ever; it returns or raises when its stream ends. Then `was_open` says whether
    the replica had answered, and `on_break` is called with the reason."""
    last_reason = ""
    retry_s = RECONNECT_S
    while True:
        is_refused = False
        try:
            await pump()
            reason = "the replica ended the stream"
        except grpc.aio.AioRpcError as error:
            reason = explain(error, is_secured=is_secured)
            is_refused = error.code() in _REFUSALS
        except Exception as error:  # a link that stops trying would lose its replica for ever
            log.exception("the link to %s failed", replica_id)
            reason = f"{type(error).__name__}: {error}"
        if reason != last_reason:
            log.warning("no stream to %s: %s", replica_id, reason)
            last_reason = reason
        if was_open():
            retry_s = RECONNECT_S
        try:
            on_break(reason)
        except Exception:
            log.exception("what hangs on the link to %s failed", replica_id)
        await asyncio.sleep(jittered(REFUSED_S if is_refused else retry_s))
        retry_s = min(1.5 * retry_s, MAX_RECONNECT_S)


def jittered(pause_s: float) -> float:
    """`pause_s` with random jitter of mean 0, so that gateways do not reconnect at the same
    moment."""
    return pause_s * random.uniform(0.5, 1.5)


async def pump_frames(
    call: grpc.aio.StreamStreamCall[pb.GatewayFrame, F],
    hello: pb.Hello,
    outgoing: asyncio.Queue[pb.GatewayFrame],
    receive: Callable[[F], None],
) -> None:
    """Send Hello, then the queue's frames; pass received frames on; until the stream ends."""
    writer: asyncio.Task[None] | None = None
    try:
        await call.write(pb.GatewayFrame(hello=hello))
        writer = asyncio.create_task(_write_frames(call, outgoing))
        frames: AsyncIterable[F] = call
        async for frame in frames:
            receive(frame)
    finally:
        call.cancel()
        if writer is not None:
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)


async def _write_frames(
    call: grpc.aio.StreamStreamCall[pb.GatewayFrame, F], outgoing: asyncio.Queue[pb.GatewayFrame]
) -> None:
    while True:
        await call.write(await outgoing.get())
