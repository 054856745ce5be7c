"""Calls a prefill replica: `core` messages on one side, gRPC on the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Protocol

import grpc
import grpc.aio

from baton.core.errors import (
    BatonError,
    InvalidRequest,
    LayoutMismatch,
    Overloaded,
    StaleEpoch,
    Unavailable,
)
from baton.core.messages import PrefillDone, PrefillGranted, PrefillProgress, PrefillRequest
from baton.core.replicas import ReplicaAddress
from baton.decode_service.early_calls import EarlyCall, EarlyCalls
from baton.proto import replica_pb2 as pb
from baton.proto.channels import Channels
from baton.proto.prefill_wire import done_from_proto, granted_from_proto, prefill_to_proto
from baton.proto.replica_pb2_grpc import PrefillStub

PrefillEvents = AsyncGenerator[PrefillProgress | PrefillGranted | PrefillDone, None]

_ERROR_BY_CODE: dict[grpc.StatusCode, type[BatonError]] = {
    grpc.StatusCode.RESOURCE_EXHAUSTED: Overloaded,
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.FAILED_PRECONDITION: LayoutMismatch,
    grpc.StatusCode.NOT_FOUND: StaleEpoch,
}


class PrefillClient(Protocol):
    def prefill(self, peer: ReplicaAddress, request: PrefillRequest) -> PrefillEvents:
        """Yield the grant, then the first token; progress in between, if P tells it. Closing the
        iterator cancels on P.

        Raises Overloaded if refused, LayoutMismatch, StaleEpoch, InvalidRequest, Unavailable if P
        is gone.
        """


class GrpcPrefillClient:
    def __init__(self, channels: Channels) -> None:
        self._channels = channels
        self._early_calls = EarlyCalls(channels)

    async def prefill(self, peer: ReplicaAddress, request: PrefillRequest) -> PrefillEvents:
        message, time_left_s = prefill_to_proto(request, peer.epoch), request.time_left_ms / 1e3
        pulse = self._channels.pulse(peer.address)
        early = await self._early_calls.begin(peer, message)
        stub = PrefillStub(self._channels.to(peer.address))
        call = early or stub.Prefill(message, timeout=time_left_s)
        has_answered = False
        try:
            async for event in call if early is None else _within(time_left_s, early):
                pulse.hear()
                match event.WhichOneof("event"):
                    case "granted":
                        yield granted_from_proto(event.granted)
                    case "progress":
                        yield PrefillProgress()
                    case "done":
                        has_answered = True
                        yield done_from_proto(event.done)
                    case _:
                        continue  # a newer replica's event: nothing we know how to use
        except grpc.aio.AioRpcError as error:
            error_type = _ERROR_BY_CODE.get(error.code(), Unavailable)
            text = f"prefill on {peer.replica_id}: {self._channels.explain(error)}"
            raise error_type(text) from error
        except TimeoutError as error:
            text = f"prefill on {peer.replica_id}: not over within {time_left_s:g} s"
            raise Unavailable(text) from error
        except ValueError as error:  # a layout that this version cannot even read, say
            raise Unavailable(f"{peer.replica_id} sent what cannot be: {error}") from error
        finally:
            call.cancel()
            if has_answered:
                self._early_calls.prepare(peer)

    def close(self) -> None:
        """Nothing is asked any more. Safe to repeat."""
        self._early_calls.close()


async def _within(seconds: float, call: EarlyCall) -> AsyncIterator[pb.PrefillEvent]:
    """The events of a call that was opened without a time limit. Raises TimeoutError."""
    ends_at = asyncio.get_running_loop().time() + seconds
    events = aiter(call)
    while True:
        async with asyncio.timeout_at(ends_at):
            event = await anext(events, None)
        if event is None:
            return
        yield event
