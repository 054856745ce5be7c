"""The transport over gRPC (proto/kv.proto): works wherever replicas can reach each other.

    D: GrpcTransport -> channel per address ~~~ KvTransferServicer -> SendingSide (P: Outbox)

Errors travel as a status code and, because two of them share one, their name in the trailing
metadata. A status that P did not set on purpose means that the stream broke.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, NoReturn

import grpc

from baton.core.errors import (
    LayoutMismatch,
    StaleEpoch,
    TransferAborted,
    TransferCut,
    TransferError,
    UnknownTransfer,
)
from baton.core.ids import Epoch, TransferId
from baton.kv_transfer.messages import KvPiece, OpenTransfer, Outcome, SettleTransfer
from baton.kv_transfer.transport.base import SendingSide
from baton.proto import kv_pb2 as pb
from baton.proto import kv_pb2_grpc as rpc
from baton.proto.channel_options import CHANNEL_OPTIONS
from baton.proto.kv_wire import layout_from_proto, layout_to_proto

_ERROR_KEY = "baton-error"
_STATUS = {
    StaleEpoch: grpc.StatusCode.FAILED_PRECONDITION,
    LayoutMismatch: grpc.StatusCode.FAILED_PRECONDITION,
    UnknownTransfer: grpc.StatusCode.NOT_FOUND,
    TransferAborted: grpc.StatusCode.ABORTED,
    TransferError: grpc.StatusCode.INVALID_ARGUMENT,
}
_ERROR_TYPES = {error_type.__name__: error_type for error_type in _STATUS}

_OUTCOME_TO_PROTO = {
    None: pb.OUTCOME_UNSPECIFIED,
    Outcome.OPEN: pb.OUTCOME_OPEN,
    Outcome.SEALED: pb.OUTCOME_SEALED,
    Outcome.ABORTED: pb.OUTCOME_ABORTED,
    Outcome.UNKNOWN: pb.OUTCOME_UNKNOWN,
}
_OUTCOME_FROM_PROTO = {number: outcome for outcome, number in _OUTCOME_TO_PROTO.items()}


_Context = grpc.aio.ServicerContext[Any, Any]


class GrpcTransport:
    name = "grpc"

    def __init__(self) -> None:
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def open(self, address: str, request: OpenTransfer) -> AsyncGenerator[KvPiece, None]:
        call = self._stub(address).Open(open_to_proto(request))
        try:
            async for message in call:
                yield piece_from_proto(message)
        except grpc.aio.AioRpcError as error:
            raise error_from_status(error, address) from error
        finally:
            call.cancel()

    async def settle(self, address: str, request: SettleTransfer) -> Outcome:
        try:
            reply = await self._stub(address).Settle(settle_to_proto(request))
        except grpc.aio.AioRpcError as error:
            raise error_from_status(error, address) from error
        return _OUTCOME_FROM_PROTO.get(reply.outcome) or Outcome.UNKNOWN

    async def close(self) -> None:
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()

    def _stub(self, address: str) -> rpc.KvTransferAsyncStub:
        channel = self._channels.get(address)
        if channel is None:
            channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
            self._channels[address] = channel
        return rpc.KvTransferStub(channel)


class KvTransferServicer(rpc.KvTransferServicer):
    """Serves one `SendingSide`; add it to the replica's server."""

    def __init__(self, side: SendingSide) -> None:
        self._side = side

    async def Open(self, request: pb.OpenRequest, context: _Context) -> AsyncIterator[pb.KvPiece]:
        try:
            async with aclosing(self._side.pieces(open_from_proto(request))) as pieces:
                async for piece in pieces:
                    yield piece_to_proto(piece)
        except TransferError as error:
            await _abort(context, error)

    async def Settle(self, request: pb.SettleRequest, context: _Context) -> pb.SettleReply:
        try:
            outcome = await self._side.settle(settle_from_proto(request))
        except TransferError as error:
            await _abort(context, error)
        return pb.SettleReply(outcome=_OUTCOME_TO_PROTO[outcome])


async def _abort(context: _Context, error: TransferError) -> NoReturn:
    """The one place where P's errors become statuses."""
    name = type(error).__name__
    status = _STATUS.get(type(error), grpc.StatusCode.INTERNAL)
    await context.abort(status, str(error), ((_ERROR_KEY, name),))
    raise AssertionError("abort always raises")


def error_from_status(error: grpc.aio.AioRpcError, address: str) -> TransferError:
    """The one place where statuses become D's errors."""
    for key, value in error.trailing_metadata() or ():
        if key == _ERROR_KEY and value in _ERROR_TYPES:
            return _ERROR_TYPES[str(value)](error.details() or "")
    return TransferCut(f"{address}: {error.code().name}: {error.details()}")


def open_to_proto(request: OpenTransfer) -> pb.OpenRequest:
    return pb.OpenRequest(
        transfer_id=request.transfer_id,
        sender_epoch=request.sender_epoch,
        receiver_epoch=request.receiver_epoch,
        layout=layout_to_proto(request.layout),
        first_block=request.first_block,
    )


def open_from_proto(message: pb.OpenRequest) -> OpenTransfer:
    """Raises LayoutMismatch for a layout that this version cannot even read."""
    try:
        layout = layout_from_proto(message.layout)
    except ValueError as error:
        raise LayoutMismatch(str(error)) from error
    return OpenTransfer(
        transfer_id=TransferId(message.transfer_id),
        sender_epoch=Epoch(message.sender_epoch),
        receiver_epoch=Epoch(message.receiver_epoch),
        layout=layout,
        first_block=message.first_block,
    )


def piece_to_proto(piece: KvPiece) -> pb.KvPiece:
    return pb.KvPiece(
        transfer_id=piece.transfer_id,
        sender_epoch=piece.sender_epoch,
        receiver_epoch=piece.receiver_epoch,
        layer=piece.layer,
        first_block=piece.first_block,
        data=bytes(piece.data),
        checksums=piece.checksums,
    )


def piece_from_proto(message: pb.KvPiece) -> KvPiece:
    return KvPiece(
        transfer_id=TransferId(message.transfer_id),
        sender_epoch=Epoch(message.sender_epoch),
        receiver_epoch=Epoch(message.receiver_epoch),
        layer=message.layer,
        first_block=message.first_block,
        data=message.data,
        checksums=tuple(message.checksums),
    )


def settle_to_proto(request: SettleTransfer) -> pb.SettleRequest:
    return pb.SettleRequest(
        transfer_id=request.transfer_id,
        sender_epoch=request.sender_epoch,
        receiver_epoch=request.receiver_epoch,
        outcome=_OUTCOME_TO_PROTO[request.outcome],
    )


def settle_from_proto(message: pb.SettleRequest) -> SettleTransfer:
    return SettleTransfer(
        transfer_id=TransferId(message.transfer_id),
        sender_epoch=Epoch(message.sender_epoch),
        receiver_epoch=Epoch(message.receiver_epoch),
        outcome=_OUTCOME_FROM_PROTO.get(message.outcome),
    )
