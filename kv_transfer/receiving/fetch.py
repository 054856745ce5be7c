"""D's asyncio side of a transfer: brings the KV of one prompt into the blocks reserved for it.

    open --> piece, piece, ... --> all there --> seal --> (tell P: SEALED)     the caller adopts
      ^            |
      |--- cut ----|      a few times, from the first block that is missing
      `-- corrupt -'      a few pieces, and nothing but these, once the others are there

    anything else, cancellation included --> abort --> (tell P: ABORTED)       the caller recomputes

A prompt may come from several sources at once, the ranks of one P: each has a stream of its own,
and the lease is sealed when all of them are complete. P is told in the background (`settling.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from functools import partial

from baton.core.clock import Clock, monotonic
from baton.core.errors import (
    CorruptPiece,
    EngineFailed,
    TransferAborted,
    TransferCut,
    TransferError,
    TransportFailed,
)
from baton.core.ids import Epoch, TransferId
from baton.core.metrics import Counter, Histogram
from baton.core.owner_thread import OwnerThread
from baton.kv_transfer.handoff.messages import OpenTransfer, Outcome
from baton.kv_transfer.handoff.reservation import Reservation, ReservedStream
from baton.kv_transfer.handoff.scores import SourceScores
from baton.kv_transfer.handoff.transport import Transport
from baton.kv_transfer.receiving.filling import Filling
from baton.kv_transfer.receiving.listener import NOBODY, Listener, listened
from baton.kv_transfer.receiving.openings import is_asked_for, once_more, opening
from baton.kv_transfer.receiving.receiver import AbortReason, Receiver
from baton.kv_transfer.receiving.settling import Settling
from baton.kv_transfer.receiving.writer import Writer, WriterParts

SECONDS_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchConfig:
    max_unwritten: int = 32
    """Pieces of one stream that have come but are not written."""
    max_unwritten_bytes: int = 20 << 20
    """Bytes of these; of one alone there may be more."""
    max_bytes_at_once: int = 2 << 20
    """Bytes of a stream, from the first on, that are written on the event loop itself, if they are
    there and go to memory as they are: for a short prompt that is quicker than a hop to a thread
    and back."""
    num_threads: int = 2
    """Threads that write pieces and verify them."""
    max_reopened: int = 3
    """How often one stream may be opened anew."""
    max_asked_again: int = 4
    """Pieces of one stream that may come with wrong bytes: each is asked for again."""
    reopen_delay_s: float = 0.05
    """Seconds before the first reopening; doubles each time."""
    max_settle_attempts: int = 3
    settle_timeout_s: float = 2.0
    """The time limit of one attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferReport:
    """How the KV of one prompt travelled."""

    num_bytes: int
    """Bytes that arrived, duplicates included."""
    transfer_ms: float
    """Milliseconds from the opening until the seal."""
    transport: str
    num_duplicates: int
    """(plane, block)s that arrived more than once."""
    num_reopened: int
    num_asked_again: int
    """Pieces that came with wrong bytes at first."""
    notes: tuple[str, ...] = ()
    """Why another transport had to be taken, or a piece be asked for again."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Flight:
    """One transfer under way."""

    reservation: Reservation
    scope: asyncio.Timeout
    transport: str
    num_bytes: int = 0
    num_duplicates: int = 0
    num_reopened: int = 0
    num_asked_again: int = 0
    notes: list[str] = field(default_factory=list)
    listener: Listener
    abort_reason: str = ""
    """Why the receiver gave the lease up on its own, if it did."""


class Fetcher:
    """Runs the transfers of one `Receiver`. Belongs to one event loop."""

    def __init__(
        self,
        receiver: Receiver,
        owner: OwnerThread,
        transport: Transport,
        *,
        clock: Clock = monotonic,
        config: FetchConfig | None = None,
        scores: SourceScores | None = None,
    ) -> None:
        self._receiver = receiver
        self._owner = owner
        self._transport = transport
        self._clock = clock
        self._config = config or FetchConfig()
        self._scores = scores or SourceScores()
        self.seconds = Histogram(
            "baton_replica_kv_transfer_seconds",
            "KV of one prompt that came, from the opening of the transfer until its seal",
            SECONDS_BOUNDS,
            ("transport",),
        )
        self.num_bytes = Counter(
            "baton_replica_kv_transfer_bytes_total",
            "KV that came, by the way it took",
            ("transport",),
        )
        self._flights: dict[TransferId, _Flight] = {}
        self._settling = Settling(
            transport,
            max_attempts=self._config.max_settle_attempts,
            timeout_s=self._config.settle_timeout_s,
            delay_s=self._config.reopen_delay_s,
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        # Its threads end when the fetcher does.
        self._writing = WriterParts(
            executor=ThreadPoolExecutor(self._config.num_threads, "baton-fill"),
            clock=clock,
            max_unwritten=self._config.max_unwritten,
            max_unwritten_bytes=self._config.max_unwritten_bytes,
            max_bytes_at_once=self._config.max_bytes_at_once,
            max_asked_again=self._config.max_asked_again,
            on_released=partial(owner.post, receiver.end_quarantine),
        )
        receiver.on_aborted.append(self._lease_was_aborted)

    async def fetch(self, reservation: Reservation, listener: Listener = NOBODY) -> TransferReport:
        """Return once every piece is verified and the lease sealed; it is the caller's to adopt.

        On any failure, and when cancelled, the lease is aborted before this ends; only a task
        cancelled before its first step never gets here, so await this where the lease was taken.
        Raises TransferError or one of its kinds, or EngineFailed.
        """
        self._loop = asyncio.get_running_loop()
        transfer_id, started = reservation.transfer_id, self._clock()
        scope = asyncio.timeout(reservation.time_left_s)
        flight = _Flight(
            reservation=reservation,
            scope=scope,
            transport=self._transport.name,
            listener=listener,
        )
        self._flights[transfer_id] = flight
        try:
            async with scope:
                await self._fill(flight)
                self._receiver.seal(transfer_id)
        except BaseException as error:
            self._give_up(flight, error)
            if isinstance(error, TimeoutError):
                why = flight.abort_reason or AbortReason.EXPIRED
                raise TransferAborted(f"{transfer_id}: {why}") from error
            raise
        finally:
            del self._flights[transfer_id]
        self._settling.tell(reservation, Outcome.SEALED)
        seconds = self._clock() - started
        self.seconds.observe(seconds, flight.transport)
        self.num_bytes.add(flight.num_bytes, flight.transport)
        return TransferReport(
            num_bytes=flight.num_bytes,
            transfer_ms=seconds * 1e3,
            transport=flight.transport,
            num_duplicates=flight.num_duplicates,
            num_reopened=flight.num_reopened,
            num_asked_again=flight.num_asked_again,
            notes=tuple(flight.notes),
        )

    async def check(self, address: str, sender: Epoch) -> None:
        """Raise NoTransport if KV of that incarnation cannot, or may not, come here."""
        await self._transport.check(address, sender, self._receiver.epoch)

    async def close(self) -> None:
        """Return when every P has been told, or cannot be. The transport stays open."""
        await self._settling.done()

    async def _fill(self, flight: _Flight) -> None:
        """Run all streams to their end. Raises what the first one to fail raised."""
        transfer_id = flight.reservation.transfer_id
        filling = self._receiver.filling(transfer_id)
        if len(flight.reservation.streams) == 1:
            await self._fill_stream(flight, filling, 0)
            return
        streams = [
            asyncio.ensure_future(self._fill_stream(flight, filling, index))
            for index in range(len(flight.reservation.streams))
        ]
        try:
            await asyncio.wait(streams, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for stream in streams:
                stream.cancel()
            await asyncio.gather(*streams, return_exceptions=True)
        for stream in streams:
            if not stream.cancelled():
                stream.result()

    async def _fill_stream(self, flight: _Flight, filling: Filling, index: int) -> None:
        stream, num_reopened = flight.reservation.streams[index], 0
        writer = Writer(filling, index, self._writing, flight.listener)
        asked = opening(flight.reservation, stream)
        try:
            while True:
                cut = await self._read(flight, stream, asked, writer)
                await writer.flush()
                first_block = filling.first_missing(index)
                if first_block == stream.blocks.stop:
                    return
                corrupt = writer.take_corrupt()
                self._take_note(flight, corrupt)
                if corrupt and cut is None:
                    asked = once_more(asked, corrupt)
                    continue
                if num_reopened == self._config.max_reopened:
                    raise cut or TransferCut(f"{stream.source.address} ended the stream early")
                await asyncio.sleep(self._config.reopen_delay_s * 2**num_reopened)
                num_reopened += 1
                flight.num_reopened += 1
                asked = replace(asked, first_block=first_block, only=())
        finally:
            writer.close()
            flight.num_duplicates += writer.num_duplicates
            for _ in range(writer.num_corrupt):
                self._scores.record(stream.source.epoch, stream.source.address, self._clock())

    async def _read(
        self, flight: _Flight, stream: ReservedStream, asked: OpenTransfer, writer: Writer
    ) -> TransferCut | None:
        """Hand the pieces of one stream to its writer until it ends; what cut it, if it was."""
        try:
            opened = self._transport.open(stream.source.address, asked)
            async with aclosing(opened) as pieces:
                async for piece in listened(pieces, flight.listener):
                    if not is_asked_for(piece, asked):
                        piece.release()
                        raise CorruptPiece(f"{stream.source.address} sends no piece a second time")
                    flight.num_bytes += piece.num_bytes
                    flight.transport = piece.transport or flight.transport
                    await writer.put(piece)
        except TransferCut as cut:
            if isinstance(cut, TransportFailed):
                flight.notes.append(str(cut))
            return cut
        return None

    def _take_note(self, flight: _Flight, corrupt: Sequence[CorruptPiece]) -> None:
        self._receiver.counters.asked_again(len(corrupt))
        flight.num_asked_again += len(corrupt)
        flight.notes += [f"{error}: asked for again" for error in corrupt]

    def _lease_was_aborted(self, transfer_id: TransferId, reason: str) -> None:
        """Called on the engine's thread: expiry or pressure took the lease away."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended, and its transfers with it
                self._loop.call_soon_threadsafe(self._stop, transfer_id, reason)

    def _stop(self, transfer_id: TransferId, reason: str) -> None:
        flight = self._flights.get(transfer_id)
        if flight is not None and not flight.scope.expired():
            flight.abort_reason = reason
            flight.scope.reschedule(asyncio.get_running_loop().time())

    def _give_up(self, flight: _Flight, error: BaseException) -> None:
        is_ours = isinstance(error, TransferError | TimeoutError | EngineFailed)
        reason = AbortReason.FAILED if is_ours else AbortReason.CANCELLED
        # A piece that is on its way to a worker finds no lease any more.
        transfer_id = flight.reservation.transfer_id
        self._owner.post(partial(self._receiver.abort, transfer_id, reason))
        self._settling.tell(flight.reservation, Outcome.ABORTED)
