"""The messages of the control stream as protobuf bytes, and errors as gRPC statuses.

Errors travel as a status code and, because several share one, their name in the trailing metadata.
A status that P did not set on purpose means that the stream broke.

Pieces are written by hand: `data` is the last field of each, so the bytes of blocks are copied once
when it is written and not at all when it is read. Any protobuf library reads the same message.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError

from baton.core.block_views import BlockViews
from baton.core.errors import (
    BatonError,
    EngineFailed,
    LayoutMismatch,
    StaleEpoch,
    TransferAborted,
    TransferCut,
    TransferError,
    TransportFailed,
    UnknownTransfer,
)
from baton.core.ids import Epoch, TransferId
from baton.core.new_bytes import new_bytes
from baton.kv_transfer.handoff.messages import BlockRange, OpenTransfer, Outcome, SettleTransfer
from baton.kv_transfer.handoff.transport import CopiedPiece, LentPiece, PackedPiece
from baton.kv_transfer.layouts.integrity import CHECKSUM_BYTES, copied_checksums, own_checksum
from baton.proto import kv_pb2 as pb
from baton.proto.channels import Channels
from baton.proto.kv_wire import layout_from_proto, layout_to_proto

ServicerContext = grpc.aio.ServicerContext[Any, Any]

_ERROR_KEY = "baton-error"
_STATUS: dict[type[BatonError], grpc.StatusCode] = {
    StaleEpoch: grpc.StatusCode.FAILED_PRECONDITION,
    LayoutMismatch: grpc.StatusCode.FAILED_PRECONDITION,
    TransportFailed: grpc.StatusCode.FAILED_PRECONDITION,
    UnknownTransfer: grpc.StatusCode.NOT_FOUND,
    TransferAborted: grpc.StatusCode.ABORTED,
    TransferCut: grpc.StatusCode.UNAVAILABLE,
    EngineFailed: grpc.StatusCode.UNAVAILABLE,
    TransferError: grpc.StatusCode.INVALID_ARGUMENT,
}
_ERROR_TYPES = {
    error_type.__name__: error_type
    for error_type in _STATUS
    if issubclass(error_type, TransferError)
}

_OUTCOME_TO_PROTO = {
    None: pb.OUTCOME_UNSPECIFIED,
    Outcome.OPEN: pb.OUTCOME_OPEN,
    Outcome.SEALED: pb.OUTCOME_SEALED,
    Outcome.ABORTED: pb.OUTCOME_ABORTED,
    Outcome.UNKNOWN: pb.OUTCOME_UNKNOWN,
}
_OUTCOME_FROM_PROTO = {number: outcome for outcome, number in _OUTCOME_TO_PROTO.items()}

_PIECES = pb.KvPieces.DESCRIPTOR.fields_by_name["pieces"].number
_IS_END = pb.KvPieces.DESCRIPTOR.fields_by_name["is_end"].number
_IS_KEPT = pb.KvPieces.DESCRIPTOR.fields_by_name["is_kept"].number
_DATA = pb.KvPiece.DESCRIPTOR.fields_by_name["data"].number
THE_END = pb.KvPieces(is_end=True).SerializeToString()
"""The message behind the last piece; or its end, for a D that `joins_end`."""
THE_END_OF_THIS = pb.KvPieces(is_end=True, is_kept=True).SerializeToString()
"""The same message of a P that keeps the stream: another transfer may be opened on it."""
MAX_TICKETS_BYTES = 32 << 10
"""A message of tickets, however many, and no more than one small block."""
_BYTES = 2
"""Protobuf's wire type of what has a length."""


async def abort_call(context: ServicerContext, error: TransferError | EngineFailed) -> NoReturn:
    """The one place where P's errors become statuses."""
    status = _STATUS.get(type(error), grpc.StatusCode.INTERNAL)
    await context.abort(status, str(error), ((_ERROR_KEY, type(error).__name__),))
    raise AssertionError("abort always raises")


def error_from_status(
    error: grpc.aio.AioRpcError, address: str, channels: Channels
) -> TransferError:
    """The one place where statuses become D's errors."""
    for key, value in error.trailing_metadata() or ():
        if key == _ERROR_KEY and value in _ERROR_TYPES:
            return _ERROR_TYPES[str(value)](error.details() or "")
    return TransferCut(f"{address}: {error.code().name}: {channels.explain(error)}")


def open_to_proto(
    request: OpenTransfer, transport: str, *, keeps_stream: bool = False, joins_end: bool = False
) -> pb.OpenRequest:
    return pb.OpenRequest(
        transfer_id=request.transfer_id,
        sender_epoch=request.sender_epoch,
        receiver_epoch=request.receiver_epoch,
        layout=layout_to_proto(request.layout),
        first_block=request.first_block,
        transport=transport,
        joins_planes=request.joins_planes,
        reads_sums_behind=request.reads_sums_behind,
        keeps_stream=keeps_stream,
        joins_end=joins_end,
        only=[
            pb.KvSpan(plane=plane, first_block=start, num_blocks=stop - start)
            for plane, start, stop in request.only
        ],
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
        joins_planes=message.joins_planes,
        reads_sums_behind=message.reads_sums_behind,
        only=tuple(
            BlockRange(span.plane, span.first_block, span.first_block + span.num_blocks)
            for span in message.only
        ),
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


def reply_to_proto(outcome: Outcome) -> pb.SettleReply:
    return pb.SettleReply(outcome=_OUTCOME_TO_PROTO[outcome])


def reply_from_proto(reply: pb.SettleReply) -> Outcome:
    return _OUTCOME_FROM_PROTO.get(reply.outcome) or Outcome.UNKNOWN


def write_piece(piece: LentPiece, packed: PackedPiece) -> bytes:
    """A `KvPieces` message of one piece. Several, end to end, are a message as well."""
    num_bytes = sum([memoryview(data).nbytes for data in packed.data])
    return b"".join((_before_data(piece, piece.checksums, packed.ticket, num_bytes), *packed.data))


def write_carried(piece: LentPiece, unit_bytes: int) -> CopiedPiece:
    """The message of a piece with its bytes, whose checksums are computed as they are copied."""
    num_bytes = piece.num_bytes
    # Of the same length, whatever they will be.
    blank = bytes(CHECKSUM_BYTES * (num_bytes // unit_bytes))
    start = len(_before_data(piece, blank, b"", num_bytes))
    message, memory = new_bytes(start + num_bytes)
    size = num_bytes // len(piece.views)
    targets = BlockViews(memory[start:], range(0, num_bytes, size), size)
    checksums = copied_checksums(piece.views, targets, unit_bytes)
    memory[:start] = _before_data(piece, checksums, b"", num_bytes)
    return CopiedPiece(checksums, message)


def _before_data(piece: LentPiece, checksums: bytes, ticket: bytes, num_bytes: int) -> bytes:
    """All of the message of a piece but its data, which is so long, and comes last."""
    header = pb.KvPiece(
        transfer_id=piece.transfer_id,
        sender_epoch=piece.sender_epoch,
        receiver_epoch=piece.receiver_epoch,
        plane=piece.plane,
        first_block=piece.first_block,
        num_planes=piece.num_planes,
        num_blocks=len(piece.views) // piece.num_planes,
        ticket=ticket,
        checksums=checksums,
        own_checksum=own_checksum(checksums) if checksums else b"",
    ).SerializeToString()
    if num_bytes:
        header += _varint(_DATA << 3 | _BYTES) + _varint(num_bytes)
    return _varint(_PIECES << 3 | _BYTES) + _varint(len(header) + num_bytes) + header


def checksums_in(message: pb.KvPiece) -> bytes:
    """The checksums that were announced with a piece; none if they were damaged on the way.

    Those of an older P, which have no checksum of their own, are taken as they are.
    """
    checksums, own = message.checksums, message.own_checksum
    return checksums if not own or own == own_checksum(checksums) else b""


@dataclass(slots=True)
class PiecesMessage:
    """One message of P on the control stream."""

    pieces: list[tuple[pb.KvPiece, memoryview]] = field(default_factory=list)
    """Each but for its data, and its data where it lies."""
    is_end: bool = False
    """No piece follows."""
    is_kept: bool = False
    """Whether, at the end, another transfer may be opened on the stream."""


def read_pieces(message: bytes) -> PiecesMessage:
    """Raises TransferCut if it is malformed."""
    view = memoryview(message)
    try:
        if len(message) <= MAX_TICKETS_BYTES:  # a copy is quicker than to look where it lies
            return _read_copy(message)
        found = PiecesMessage()
        for _, number, start, stop in _fields(view):
            if number == _PIECES:
                found.pieces.append(_read_piece(view[start:stop]))
            elif number == _IS_END:
                found.is_end = bool(_read_varint(view, start)[0])
            elif number == _IS_KEPT:
                found.is_kept = bool(_read_varint(view, start)[0])
        return found
    except (ValueError, IndexError, DecodeError) as error:
        raise TransferCut(f"a piece that cannot be read: {error}") from error


def _read_copy(message: bytes) -> PiecesMessage:
    read = pb.KvPieces.FromString(message)
    found = PiecesMessage(is_end=read.is_end, is_kept=read.is_kept)
    for piece in read.pieces:
        data = memoryview(piece.data)
        piece.ClearField("data")
        found.pieces.append((piece, data))
    return found


def _read_piece(view: memoryview) -> tuple[pb.KvPiece, memoryview]:
    """`data` is last as we write it; others may write it anywhere."""
    begin = start = stop = len(view)
    for field_begin, number, value_start, value_stop in _fields(view):
        if number == _DATA:
            begin, start, stop = field_begin, value_start, value_stop
            break
    return pb.KvPiece.FromString(bytes(view[:begin]) + bytes(view[stop:])), view[start:stop]


def _fields(message: memoryview) -> Iterator[tuple[int, int, int, int]]:
    """(where it begins, its number, where its value begins and ends) of each field."""
    at = 0
    while at < len(message):
        begin = at
        tag, at = _read_varint(message, at)
        stop = at
        match tag & 7:
            case 0:
                _, stop = _read_varint(message, at)
            case 1:
                stop = at + 8
            case 2:
                size, at = _read_varint(message, at)
                stop = at + size
            case 5:
                stop = at + 4
            case unknown:
                raise ValueError(f"wire type {unknown}")
        if stop > len(message):
            raise ValueError("it ends in the middle of a field")
        yield begin, tag >> 3, at, stop
        at = stop


def _varint(value: int) -> bytes:
    digits = bytearray()
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    digits.append(value)
    return bytes(digits)


def _read_varint(message: memoryview, at: int) -> tuple[int, int]:
    """The number, and where the rest begins."""
    value = 0
    for shift in range(0, 70, 7):
        digit = message[at]
        at += 1
        value |= (digit & 0x7F) << shift
        if digit < 0x80:
            return value, at
    raise ValueError("a number of more than 64 bits")
