"""D's end of the control stream of a transfer (proto/kv.proto), on which P announces its pieces.

D: ControlClient ~~~ KvTransferServicer -> SendingSide (P: Outbox)
                                        -> SendingHalf: the bytes, or a ticket for them

P: lend -> announce -------------------------> D: read -> release
     ^--- give back <--- Taken(n) ----------------'         pieces with a ticket only
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc

from baton.core.errors import TransferCut, TransferError
from baton.core.gathering import Gathering
from baton.core.ids import Epoch, TransferId
from baton.core.kv_layout import KvLayout
from baton.kv_transfer.handoff.messages import KvPiece, OpenTransfer, Outcome, SettleTransfer
from baton.kv_transfer.transport.control.streams import ControlStream, ControlStreams, Door
from baton.kv_transfer.transport.control.wire import (
    checksums_in,
    error_from_status,
    open_to_proto,
    read_pieces,
    reply_from_proto,
    settle_to_proto,
)
from baton.proto import kv_pb2 as pb
from baton.proto import kv_pb2_grpc as rpc
from baton.proto.channels import Channels
from baton.proto.kv_wire import layout_from_proto

TELL_AFTER = 8
"""Taken pieces of which P is notified at once: a quarter of what it lends. Each message costs both
ends."""
TELL_WITHIN_S = 0.02
"""The longest delay of that notice for fewer pieces, while there are more to come."""

LAST_WORDS_S = 1.0
"""Seconds to notify P that all is taken, and for it to end a stream whose pieces are all there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeOffer:
    """Blocks of no meaning that P lends for a measurement."""

    transfer_id: TransferId
    layout: KvLayout
    num_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncedPiece:
    """A piece that P has announced. Call `take` once its bytes are read, or not wanted."""

    message: pb.KvPiece
    """The piece's message without its data."""
    data: memoryview
    take: Callable[[], None]
    """Once, or more often; from any thread. Pieces may be taken in any order."""

    @property
    def num_planes(self) -> int:
        return self.message.num_planes or 1

    @property
    def num_views(self) -> int:
        """Blocks of all its planes."""
        return self.num_planes * self.message.num_blocks

    def piece(self, views: Sequence[memoryview]) -> KvPiece:
        message = self.message
        return KvPiece(
            transfer_id=TransferId(message.transfer_id),
            sender_epoch=Epoch(message.sender_epoch),
            receiver_epoch=Epoch(message.receiver_epoch),
            plane=message.plane,
            num_planes=self.num_planes,
            first_block=message.first_block,
            views=views,
            checksums=checksums_in(message),
            release=self.take,
        )


class ControlClient:
    """D's end, for all transports of a replica."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels
        self._lines = ControlStreams(channels)
        self._ending: set[asyncio.Task[None]] = set()
        """Streams whose pieces are all taken, until P was told so, or has ended them."""

    @property
    def num_idle_streams(self) -> int:
        """Kept for the next transfer."""
        return self._lines.num_idle

    async def open(
        self, address: str, request: OpenTransfer, transport: str, door: Door | None = None
    ) -> AsyncGenerator[AnnouncedPiece, None]:
        """Yield what P announces. Pieces may be taken in any order, also after the next one.

        Ends when P has ended the stream or, where it says that no piece follows, as soon as all of
        them are taken. A stream that P keeps, too, is used again.
        """
        taking = _Taking(asyncio.get_running_loop())
        pulse = self._channels.pulse(address)
        line: ControlStream | None = None
        telling: asyncio.Task[None] | None = None
        is_kept = False
        try:
            opening = pb.OpenMessage(
                open=open_to_proto(request, transport, keeps_stream=True, joins_end=True)
            )
            line, message = await self._lines.begin(address, opening, door)
            telling = asyncio.create_task(taking.tell(line))
            while message is not None:
                pulse.received()
                received = read_pieces(message)
                for header, data in received.pieces:
                    yield AnnouncedPiece(message=header, data=data, take=taking.expect(header))
                if received.is_end:
                    is_kept = received.is_kept
                    await taking.all_taken(line.reading())
                    return
                del received  # its pieces are their receivers' now
                message = await line.read()
        except grpc.aio.AioRpcError as error:
            raise error_from_status(error, address, self._channels) from error
        except asyncio.InvalidStateError as error:  # written to a stream that has just ended
            raise TransferCut(f"{address}: the stream has ended") from error
        finally:
            if line is not None and telling is not None and taking.has_all:
                self._end(line, telling, is_kept=is_kept)
            elif line is not None:
                if telling is not None:
                    telling.cancel()
                line.close()

    def _end(self, line: ControlStream, telling: asyncio.Task[None], *, is_kept: bool) -> None:
        """Have P notified of what was taken. A P that gets no notice takes it back by itself.

        `is_kept`: the stream is kept for the next transfer.
        """
        if is_kept and telling.done():
            self._lines.keep(line)
            return
        ending = asyncio.create_task(self._end_quietly(line, telling, is_kept=is_kept))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)

    async def _end_quietly(
        self, line: ControlStream, telling: asyncio.Task[None], *, is_kept: bool
    ) -> None:
        """All pieces are here: an error at the stream's end does not matter any more."""
        last: set[asyncio.Task[Any]] = {telling} if is_kept else {telling, line.reading()}
        try:
            _, left = await asyncio.wait(last, timeout=LAST_WORDS_S)
        except BaseException:
            telling.cancel()
            line.close()
            raise
        if is_kept and not left:
            self._lines.keep(line)
        else:
            telling.cancel()
            line.close()

    async def settle(self, address: str, request: SettleTransfer) -> Outcome:
        try:
            reply = await self._stub(address).Settle(settle_to_proto(request))
        except grpc.aio.AioRpcError as error:
            raise error_from_status(error, address, self._channels) from error
        return reply_from_proto(reply)

    async def meet(
        self, address: str, transport: str, sender: Epoch, receiver: Epoch, payload: bytes = b""
    ) -> bytes:
        """Ask P's half of a transport. Raises TransportFailed, StaleEpoch or TransferCut."""
        request = pb.MeetRequest(
            transport=transport, sender_epoch=sender, receiver_epoch=receiver, payload=payload
        )
        try:
            reply = await self._stub(address).Meet(request)
        except grpc.aio.AioRpcError as error:
            raise error_from_status(error, address, self._channels) from error
        return reply.payload

    async def offer_probe(
        self, address: str, sender: Epoch, receiver: Epoch, num_bytes: int, time_left_s: float
    ) -> ProbeOffer:
        """Ask for blocks to measure with. Raises TransferError, StaleEpoch or TransferCut."""
        request = pb.ProbeRequest(
            sender_epoch=sender,
            receiver_epoch=receiver,
            num_bytes=num_bytes,
            time_left_ms=int(time_left_s * 1e3),
        )
        try:
            reply = await self._stub(address).OfferProbe(request)
            layout = layout_from_proto(reply.layout)
        except grpc.aio.AioRpcError as error:
            raise error_from_status(error, address, self._channels) from error
        except ValueError as error:
            raise TransferError(f"{address}: {error}") from error
        return ProbeOffer(
            transfer_id=TransferId(reply.transfer_id), layout=layout, num_blocks=reply.num_blocks
        )

    def _stub(self, address: str) -> rpc.KvTransferAsyncStub:
        return rpc.KvTransferStub(self._channels.to(address))


class _Taking:
    """Tells P how many pieces with a ticket, counted from the first, it may take back."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._newly_taken = Gathering[int](loop.call_soon_threadsafe, self._take_all)
        self._is_taken: deque[bool] = deque()
        self._num_before = self._num_told = 0
        """Pieces, from the first on, that are taken."""
        self._is_due = asyncio.Event()
        """P is to be told."""
        self._reminder: asyncio.TimerHandle | None = None
        self._none_out = asyncio.Event()
        self._is_last_known = False

    def expect(self, message: pb.KvPiece) -> Callable[[], None]:
        if not message.ticket:
            return lambda: None  # its bytes are here: P does not wait
        number = self._num_before + len(self._is_taken)
        self._is_taken.append(False)

        def take() -> None:
            with suppress(RuntimeError):  # the loop has ended, and the stream with it
                self._newly_taken.add(number)

        return take

    def _take_all(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._take(number)

    def _take(self, number: int) -> None:
        if number < self._num_before:
            return  # for the second time
        self._is_taken[number - self._num_before] = True
        while self._is_taken and self._is_taken[0]:
            self._is_taken.popleft()
            self._num_before += 1
        if not self._is_taken:
            self._none_out.set()  # the waiting stream goes on before P is notified
        self._remind()

    def _remind(self) -> None:
        if self.has_all or self._num_before - self._num_told >= TELL_AFTER:
            self._is_due.set()
        elif self._num_before > self._num_told and self._reminder is None:
            self._reminder = self._loop.call_later(TELL_WITHIN_S, self._is_due.set)

    @property
    def has_all(self) -> bool:
        """There are no more pieces than were announced, and all of these are taken."""
        return self._is_last_known and not self._is_taken

    async def all_taken(self, ended: asyncio.Task[bytes | None]) -> None:
        """There are no more pieces: return when none is out. Raises what `ended` raises before."""
        self._is_last_known = True
        ended.add_done_callback(lambda _: self._none_out.set())
        while self._is_taken and not ended.done():
            self._none_out.clear()
            await self._none_out.wait()
        self._is_due.set()
        if ended.done():
            ended.result()

    async def tell(self, line: ControlStream) -> None:
        """Tell P what was taken, until all is told, where it is known how many there are."""
        try:
            while not self.has_all or self._num_told < self._num_before:
                await self._is_due.wait()
                self._forget_reminder()
                self._is_due.clear()
                if self._num_told == self._num_before:
                    continue
                self._num_told = self._num_before
                await line.write(pb.OpenMessage(taken=pb.Taken(num_pieces=self._num_told)))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the reader gets the same error
        finally:
            self._forget_reminder()

    def _forget_reminder(self) -> None:
        if self._reminder is not None:
            self._reminder.cancel()
            self._reminder = None
