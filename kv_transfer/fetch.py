"""D's asyncio side of a transfer: brings the KV of one prompt into the blocks reserved for it.

    open --> piece, piece, ... --> all there --> seal --> (tell P: SEALED)     the caller adopts
      ^            |
      `--- cut ----'      a few times, from the first block that is missing

    anything else, cancellation included --> abort --> (tell P: ABORTED)       the caller recomputes

Telling P is done behind the caller's back, a bounded number of times: whatever P answers, D has
verified the bytes or given them up. A P that cannot be told lets its lease expire.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from functools import partial

from baton.core.clock import Clock, monotonic
from baton.core.errors import EngineFailed, TransferAborted, TransferCut, TransferError
from baton.core.ids import TransferId
from baton.core.owner_thread import OwnerThread
from baton.kv_transfer.messages import KvPiece, OpenTransfer, Outcome, SettleTransfer
from baton.kv_transfer.receiver import AbortReason, Accepted, Receiver
from baton.kv_transfer.reservation import Reservation
from baton.kv_transfer.transport.base import Transport


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchConfig:
    max_pieces_in_flight: int = 8
    """Pieces handed to the engine's thread but not yet written there."""
    max_reopened: int = 3
    reopen_delay_s: float = 0.05
    """Before the first opening anew; doubles each time."""
    max_settle_attempts: int = 3
    settle_timeout_s: float = 2.0
    """Of one attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferReport:
    """How the KV of one prompt travelled."""

    num_bytes: int
    """That arrived, duplicates included."""
    transfer_ms: float
    """From the opening until the seal."""
    transport: str
    num_duplicates: int
    """(layer, block)s that arrived more than once."""
    num_reopened: int


@dataclass(slots=True, kw_only=True, eq=False)
class _Flight:
    """One transfer under way."""

    reservation: Reservation
    address: str
    scope: asyncio.Timeout
    writing: deque[asyncio.Future[Accepted]] = field(default_factory=deque)
    num_bytes: int = 0
    num_duplicates: int = 0
    num_reopened: int = 0
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
    ) -> None:
        self._receiver = receiver
        self._owner = owner
        self._transport = transport
        self._clock = clock
        self._config = config or FetchConfig()
        self._flights: dict[TransferId, _Flight] = {}
        self._telling: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        receiver.on_aborted.append(self._lease_was_aborted)

    async def fetch(self, reservation: Reservation, address: str) -> TransferReport:
        """Return once every piece is verified and the lease sealed; it is the caller's to adopt.

        On any failure, and when cancelled, the lease is aborted before this ends; only a task
        cancelled before its first step never gets here, so await this where the lease was taken.
        Raises TransferError or one of its kinds, or EngineFailed.
        """
        self._loop = asyncio.get_running_loop()
        transfer_id, started = reservation.transfer_id, self._clock()
        scope = asyncio.timeout(reservation.time_left_s)
        flight = _Flight(reservation=reservation, address=address, scope=scope)
        self._flights[transfer_id] = flight
        self._owner.post(partial(self._check_lease, transfer_id))
        try:
            async with scope:
                await self._fill(flight)
                await self._owner.call(partial(self._receiver.seal, transfer_id))
        except BaseException as error:
            self._give_up(flight, error)
            if isinstance(error, TimeoutError):
                why = flight.abort_reason or AbortReason.EXPIRED
                raise TransferAborted(f"{transfer_id}: {why}") from error
            raise
        finally:
            del self._flights[transfer_id]
        self._tell(flight, Outcome.SEALED)
        return TransferReport(
            num_bytes=flight.num_bytes,
            transfer_ms=(self._clock() - started) * 1e3,
            transport=self._transport.name,
            num_duplicates=flight.num_duplicates,
            num_reopened=flight.num_reopened,
        )

    async def close(self) -> None:
        """Return when every P has been told, or cannot be. The transport stays open."""
        while self._telling:
            await asyncio.wait(self._telling)

    async def _fill(self, flight: _Flight) -> None:
        first_block = flight.reservation.first_block
        while True:
            try:
                await self._stream(flight, first_block)
                raise TransferCut(f"{flight.address} ended the stream early")
            except TransferCut:
                await self._written(flight, max_unwritten=0)
                first_block = await self._first_missing(flight)
                if first_block == flight.reservation.num_blocks:
                    return
                if flight.num_reopened == self._config.max_reopened:
                    raise
            delay_s = self._config.reopen_delay_s * 2**flight.num_reopened
            flight.num_reopened += 1
            await asyncio.sleep(delay_s)

    async def _stream(self, flight: _Flight, first_block: int) -> None:
        """Hand the pieces of one stream to the receiver until it ends."""
        lease = flight.reservation
        request = OpenTransfer(
            transfer_id=lease.transfer_id,
            sender_epoch=lease.sender_epoch,
            receiver_epoch=lease.receiver_epoch,
            layout=lease.layout,
            first_block=first_block,
        )
        async with aclosing(self._transport.open(flight.address, request)) as pieces:
            async for piece in pieces:
                flight.num_bytes += len(piece.data)
                await self._written(flight, max_unwritten=self._config.max_pieces_in_flight - 1)
                flight.writing.append(self._write(piece))

    def _write(self, piece: KvPiece) -> asyncio.Future[Accepted]:
        def accept() -> Accepted:
            return self._receiver.accept(piece, self._clock())

        writing = asyncio.ensure_future(self._owner.call(accept))
        # A failure that nobody waits for any more has been dealt with by an earlier one.
        writing.add_done_callback(lambda done: done.cancelled() or done.exception())
        return writing

    async def _written(self, flight: _Flight, *, max_unwritten: int) -> None:
        """Wait until at most so many pieces are in the receiver's hands. Raises what it raised."""
        while len(flight.writing) > max_unwritten:
            accepted = await flight.writing.popleft()
            flight.num_duplicates += accepted.num_duplicates

    async def _first_missing(self, flight: _Flight) -> int:
        transfer_id = flight.reservation.transfer_id
        return await self._owner.call(partial(self._receiver.first_missing, transfer_id))

    def _check_lease(self, transfer_id: TransferId) -> None:
        """Called on the engine's thread: the lease may have been taken away before the flight."""
        if self._receiver.state(transfer_id) is None:
            self._lease_was_aborted(transfer_id, "given up before it began")

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
        # A piece that was handed in but has not run yet finds no lease any more.
        transfer_id = flight.reservation.transfer_id
        self._owner.post(partial(self._receiver.abort, transfer_id, reason))
        self._tell(flight, Outcome.ABORTED)

    def _tell(self, flight: _Flight, outcome: Outcome) -> None:
        lease = flight.reservation
        request = SettleTransfer(
            transfer_id=lease.transfer_id,
            sender_epoch=lease.sender_epoch,
            receiver_epoch=lease.receiver_epoch,
            outcome=outcome,
        )
        task = asyncio.ensure_future(self._settle(flight.address, request))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _settle(self, address: str, request: SettleTransfer) -> None:
        for attempt in range(self._config.max_settle_attempts):
            try:
                async with asyncio.timeout(self._config.settle_timeout_s):
                    await self._transport.settle(address, request)
                return
            except (TransferCut, TimeoutError):
                await asyncio.sleep(self._config.reopen_delay_s * 2**attempt)
            except TransferError:
                return  # another incarnation, say: it holds nothing of ours
