"""P's end of the control stream: lends the pieces of a transfer to D, and tells how to get them.

SendingSide --pieces--> StreamWindow --packed, as many as are ready--> D
                             lent <------------ Taken(n) ------------'

If D keeps its streams it opens the next transfer on the same one, which has a window of its own. P
says with each transfer whether it keeps the stream, and may end one on which nothing is open.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

import grpc

from baton.core.clock import monotonic
from baton.core.errors import (
    EngineFailed,
    StaleEpoch,
    TransferError,
    TransportFailed,
)
from baton.core.ids import Epoch
from baton.kv_transfer.handoff.messages import OpenTransfer, Outcome, SettleTransfer
from baton.kv_transfer.handoff.transport import SendingHalf, SendingSide
from baton.kv_transfer.transport.control.client import ProbeOffer
from baton.kv_transfer.transport.control.socket_lines import OpensLines
from baton.kv_transfer.transport.control.stream_window import MAX_UNTAKEN, StreamWindow
from baton.kv_transfer.transport.control.streams import SERVICE
from baton.kv_transfer.transport.control.wire import (
    MAX_TICKETS_BYTES,
    THE_END,
    THE_END_OF_THIS,
    ServicerContext,
    abort_call,
    open_from_proto,
    reply_to_proto,
    settle_from_proto,
)
from baton.proto import kv_pb2 as pb
from baton.proto.kv_wire import layout_to_proto

LAST_READS_S = 1.0
"""Seconds for D to finish reading what it was lent before P gave the transfer up."""

MAX_AGE_S = 60.0
"""An older stream is not kept: with a new one the peer proves its identity again, as tokens and
certificates change."""

NO_OPENING = "a stream begins with `open`"


class ProbeDesk(Protocol):
    async def offer(self, receiver_epoch: Epoch, num_bytes: int, time_left_s: float) -> ProbeOffer:
        """Raises TransferError when there is no room for a probe."""


class KvTransferServicer:
    """Serves one `SendingSide` by any of `halves`, which are known by name."""

    def __init__(
        self,
        side: SendingSide,
        epoch: Epoch,
        halves: Mapping[str, SendingHalf],
        probes: ProbeDesk | None = None,
    ) -> None:
        self._side = side
        self._epoch = epoch
        self._halves = halves
        self._probes = probes
        self._open: dict[StreamWindow, OpenTransfer] = {}
        """The transfers under way."""
        self._idle: set[StreamWindow] = set()
        """Windows of streams that are kept, while nothing is open on them."""
        self._is_leaving = False
        for half in halves.values():
            if isinstance(half, OpensLines):
                half.open_stream = self.Open

    def serve(self, server: grpc.aio.Server) -> None:
        """Register the service as generated code does, except that pieces are bytes already."""
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Open": stream(self.Open, pb.OpenMessage.FromString),
            "Settle": unary(
                self.Settle, pb.SettleRequest.FromString, pb.SettleReply.SerializeToString
            ),
            "Meet": unary(self.Meet, pb.MeetRequest.FromString, pb.MeetReply.SerializeToString),
            "OfferProbe": unary(
                self.OfferProbe, pb.ProbeRequest.FromString, pb.ProbeOffer.SerializeToString
            ),
        }
        server.add_registered_method_handlers(SERVICE, handlers)

    def leave(self) -> None:
        """The server is about to stop: no stream is kept, and none that is idle is waited for."""
        self._is_leaving = True
        for window in self._idle:
            window.stop_listening()

    async def Open(
        self, messages: AsyncIterator[pb.OpenMessage], context: ServicerContext
    ) -> AsyncGenerator[bytes, None]:
        window, opening = StreamWindow(), await anext(messages, None)
        old_at = monotonic() + MAX_AGE_S
        try:
            if opening is None:
                raise TransferError(NO_OPENING)
            while opening is not None:
                request, half = self._opened(opening)
                self._open[window] = request
                window.listen(messages)
                window.prepare(self._side.pieces(request))
                is_told = False
                while not is_told and (piece := await window.next()) is not None:
                    message = await window.announce(piece, half, request)
                    if opening.open.joins_end and window.is_at_end and _is_short(message):
                        message += self._end_of(window, opening.open, old_at)
                        is_told = True
                    with window.waiting():
                        yield message
                    await window.shrink(MAX_UNTAKEN - 1)
                if not is_told:
                    end = self._end_of(window, opening.open, old_at)
                    if window.may_open_next or window.num_lent:
                        with window.waiting():
                            yield end
                await window.shrink(0)  # D still reads; the stream's end would take its views away
                if not window.may_open_next:
                    return
                del self._open[window]
                opening = await self._next_opening(window)
                await window.close()
                window = StreamWindow()
        except (TransferError, EngineFailed) as error:
            with suppress(TransferError, TimeoutError):
                async with asyncio.timeout(LAST_READS_S):
                    await window.shrink(0)
            await abort_call(context, error)
        finally:
            self._open.pop(window, None)
            await window.close()

    async def Settle(self, request: pb.SettleRequest, context: ServicerContext) -> pb.SettleReply:
        try:
            told = settle_from_proto(request)
            if told.outcome is Outcome.SEALED:
                self._take_back(told)
            outcome = await self._side.settle(told)
        except (TransferError, EngineFailed) as error:
            await abort_call(context, error)
        return reply_to_proto(outcome)

    async def Meet(self, request: pb.MeetRequest, context: ServicerContext) -> pb.MeetReply:
        try:
            self._check_epoch(request.sender_epoch)
            half = self._half(request.transport)
            payload = await half.meet(Epoch(request.receiver_epoch), request.payload)
        except TransferError as error:
            await abort_call(context, error)
        return pb.MeetReply(payload=payload)

    async def OfferProbe(self, request: pb.ProbeRequest, context: ServicerContext) -> pb.ProbeOffer:
        try:
            self._check_epoch(request.sender_epoch)
            if self._probes is None:
                raise TransferError("this replica lends nothing to measure with")
            time_left_s = request.time_left_ms / 1e3
            receiver = Epoch(request.receiver_epoch)
            offer = await self._probes.offer(receiver, request.num_bytes, time_left_s)
        except (TransferError, EngineFailed) as error:
            await abort_call(context, error)
        return pb.ProbeOffer(
            transfer_id=offer.transfer_id,
            layout=layout_to_proto(offer.layout),
            num_blocks=offer.num_blocks,
        )

    def _end_of(self, window: StreamWindow, opening: pb.OpenRequest, old_at: float) -> bytes:
        """The message; from now on D may open another transfer, if P keeps the stream."""
        is_young = monotonic() < old_at and not self._is_leaving
        window.may_open_next = opening.keeps_stream and is_young
        return THE_END_OF_THIS if window.may_open_next else THE_END

    async def _next_opening(self, window: StreamWindow) -> pb.OpenMessage | None:
        """None where the stream ends. Raises TransferError."""
        if self._is_leaving:
            return None
        self._idle.add(window)
        try:
            return await window.next_opening()
        finally:
            self._idle.discard(window)

    def _opened(self, message: pb.OpenMessage) -> tuple[OpenTransfer, SendingHalf]:
        if not message.HasField("open"):
            raise TransferError(NO_OPENING)
        half = self._half(message.open.transport or "grpc")
        request = open_from_proto(message.open)
        told = replace(
            request,
            max_piece_bytes=half.max_piece_bytes,
            carry=half.carry,
            reads_in_place=half.reads_in_place,
        )
        return told, half

    def _take_back(self, sealed: SettleTransfer) -> None:
        """D has taken all pieces, also if it has yet to say so: nothing goes to quarantine."""
        ids = sealed.transfer_id, sealed.sender_epoch, sealed.receiver_epoch
        for window, opened in self._open.items():
            if (opened.transfer_id, opened.sender_epoch, opened.receiver_epoch) == ids:
                window.settle()

    def _half(self, transport: str) -> SendingHalf:
        half = self._halves.get(transport)
        if half is None:
            known = ", ".join(self._halves)
            raise TransportFailed(f"this replica does not send by {transport!r}, but by {known}")
        return half

    def _check_epoch(self, epoch: str) -> None:
        if epoch != self._epoch:
            raise StaleEpoch("this is for an earlier incarnation of the sender")


def _is_short(message: bytes) -> bool:
    """It costs less to copy once more than another message would."""
    return len(message) <= MAX_TICKETS_BYTES
