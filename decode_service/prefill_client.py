"""Calls a prefill replica: `core` messages on one side, gRPC on the other."""

from __future__ import annotations

from collections.abc import AsyncGenerator
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
        """Yield the grant, then the first token; progress in between, if P reports it. Closing the
        iterator cancels on P.

        Raises Overloaded if refused, LayoutMismatch, StaleEpoch, InvalidRequest, Unavailable if P
        is gone.
        """


class GrpcPrefillClient:
    def __init__(self, channels: Channels) -> None:
        self._channels = channels

    async def prefill(self, peer: ReplicaAddress, request: PrefillRequest) -> PrefillEvents:
        stub = PrefillStub(self._channels.to(peer.address))
        pulse = self._channels.pulse(peer.address)
        call = stub.Prefill(
            prefill_to_proto(request, peer.epoch), timeout=request.time_left_ms / 1e3
        )
        try:
            async for event in call:
                pulse.received()
                match event.WhichOneof("event"):
                    case "granted":
                        yield granted_from_proto(event.granted)
                    case "progress":
                        yield PrefillProgress()
                    case "done":
                        yield done_from_proto(event.done)
                    case _:
                        continue  # a newer replica's event: nothing we know how to use
        except grpc.aio.AioRpcError as error:
            error_type = _ERROR_BY_CODE.get(error.code(), Unavailable)
            text = f"prefill on {peer.replica_id}: {self._channels.explain(error)}"
            raise error_type(text) from error
        except ValueError as error:  # a layout that this version cannot even read, say
            raise Unavailable(f"{peer.replica_id} sent what cannot be: {error}") from error
        finally:
            call.cancel()
