"""D's end of one data connection: pieces are asked for as they are announced, and read in turn.

    event loop     expect: ASK ------------------------> P     Arrival: its place in the line
    any thread     read: HEADER, bytes <================ P     into the memory it is given, and
                         checksums                             what follows, if anything does

A reader whose turn has not come first reads the pieces before its own, on behalf of their readers.
The system writes to the reader's memory within its call and never after it: so a reader holds its
claim to the blocks until that call is over, and a connection that is given up is shut down first,
which ends the call, and closed when nobody reads any more.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from baton.core.block_views import BlockViews, stretches
from baton.core.clock import monotonic
from baton.core.errors import TransferCut
from baton.kernels.paging.piece_stream import State
from baton.kernels.paging.receiving import Receiving, can_receive
from baton.kv_transfer.handoff.messages import ChecksumsBehind
from baton.kv_transfer.layouts.integrity import CHECKSUM_BYTES, without_own_checksum
from baton.kv_transfer.transport.tcp.frames import (
    HEADER,
    MAX_PARTS,
    SLICE_S,
    Ticket,
    advance,
    make_blocking,
    seconds_for,
)


class Arrival:
    """A piece that was asked for and has not been read."""

    def __init__(
        self,
        connection: DataConnection,
        number: int,
        num_bytes: int,
        checksums: ChecksumsBehind | None,
    ) -> None:
        """`checksums` follow the bytes, if any do."""
        self.number = number
        self.num_bytes = num_bytes
        self.checksums = checksums
        self.is_dropped = False
        self.early: memoryview | None = None
        """The piece's bytes, where another reader's turn came first."""
        self._connection = connection

    @property
    def num_trailer_bytes(self) -> int:
        """Bytes of its checksums, and of the checksum of these."""
        return 0 if self.checksums is None else self.checksums.num_bytes + CHECKSUM_BYTES

    @property
    def length(self) -> int:
        """All that comes behind its header."""
        return self.num_bytes + self.num_trailer_bytes

    def note(self, trailer: bytes) -> None:
        """What follows its bytes has come."""
        if self.checksums is not None:
            self.checksums.come = without_own_checksum(trailer) or b""

    def read(self, targets: Sequence[memoryview]) -> None:
        """Once: fill this memory with it. Waits for it, on any thread. Raises TransferCut."""
        self._connection.read(self, targets)

    def read_summed(self, targets: BlockViews, unit_bytes: int) -> bytes | None:
        """Read it into the targets. The checksums of their units; None if they are yet to be
        computed."""
        return self._connection.read_summed(self, targets, unit_bytes)

    def drop(self) -> None:
        """Nobody will read it. Does not wait."""
        self.is_dropped = True


class DataConnection:
    """A data connection for one stream at a time."""

    def __init__(self, connection: socket.socket, name: str) -> None:
        """`connection` was admitted by P. Belongs to this event loop."""
        make_blocking(connection, receive_s=SLICE_S, send_s=SLICE_S)
        self.name = name
        self._on_broken: Callable[[TransferCut], None] = _ignore
        self._loop = asyncio.get_running_loop()
        self._socket = connection
        self._asks = bytearray()
        self._guard = threading.Lock()
        """Guards the asks, the failure, and the socket's use by others than the reader."""
        self._reading = threading.Lock()
        self._line: deque[Arrival] = deque()
        """Arrivals in the order asked; the first one's header is next on the wire."""
        self._failure: TransferCut | None = None

    @property
    def is_fresh(self) -> bool:
        """Nothing is on the wire, and P has not closed it: another stream may use it."""
        if self._failure is not None or self._line or self._asks:
            return False
        try:
            self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False  # the end, or bytes nobody asked for

    @property
    def is_awaited(self) -> bool:
        """There is something on it that somebody may read."""
        return self._failure is None and not all(each.is_dropped for each in list(self._line))

    def begin(self, on_broken: Callable[[TransferCut], None]) -> None:
        """A stream uses it from now on; it is told, on the event loop, if the connection breaks."""
        self._on_broken = on_broken

    def expect(self, ticket: Ticket, num_blocks: int) -> Arrival:
        """Ask for a piece, in one message with others that are announced at the same time."""
        num_sums = ticket.num_checksum_bytes(num_blocks)
        checksums = ChecksumsBehind(num_sums) if num_sums else None
        arrival = Arrival(self, ticket.number, num_blocks * ticket.block_bytes, checksums)
        with self._guard:
            if not self._asks:
                self._loop.call_soon(self._send_asks)
            self._asks += ticket.ask
            self._line.append(arrival)
        return arrival

    def read(self, arrival: Arrival, targets: Sequence[memoryview]) -> None:
        """See `Arrival.read`."""
        with self._turn_of(arrival):
            if arrival.early is not None:
                _copy(arrival.early, targets)
            else:
                self._read_next(targets)

    def read_summed(self, arrival: Arrival, targets: BlockViews, unit_bytes: int) -> bytes | None:
        """See `Arrival.read_summed`."""
        if not can_receive(unit_bytes):
            self.read(arrival, stretches(targets))
            return None
        with self._turn_of(arrival):
            if arrival.early is None:
                return self._receive_next(targets, unit_bytes)
            _copy(arrival.early, targets)
            return None

    @contextmanager
    def _turn_of(self, arrival: Arrival) -> Iterator[None]:
        """It is next on the wire, or has been read early."""
        self._send_asks()  # on the event loop itself they would be sent only after this wait
        try:
            with self._reading:
                self._read_until(arrival)
                yield
        except TransferCut as cut:
            self._fail(cut)
            raise
        finally:
            if self._failure is not None:
                self._close_unread()

    def close(self, why: str) -> None:
        """Return at once. A reader is cut; nothing is written to its memory any more."""
        self._fail(TransferCut(f"{self.name}: {why}"))
        self._close_unread()

    def _close_unread(self) -> None:
        """Unless a reader is left, which then does it: the descriptor may be reused at once."""
        if self._reading.acquire(blocking=False):
            with self._guard:
                self._socket.close()
            self._reading.release()

    def _send_asks(self) -> None:
        with self._guard:
            asks, self._asks = self._asks, bytearray()
            if not asks or self._failure is not None:
                return
            try:
                # P reads on unless it is lost: a line has few pieces, and the system takes them.
                if self._socket.send(asks, socket.MSG_DONTWAIT) == len(asks):
                    return
            except OSError:
                pass
        self._fail(TransferCut(f"{self.name}: the sender reads nothing"))

    # What follows is called with the lock held.

    def _read_until(self, arrival: Arrival) -> None:
        """Whatever is before it in the line, if it has not been read early itself."""
        while arrival.early is None and self._line and self._line[0] is not arrival:
            first = self._line[0]
            memory = memoryview(bytearray(first.num_bytes))
            self._read_next((memory,))
            if not first.is_dropped:
                first.early = memory

    def _read_next(self, targets: Sequence[memoryview]) -> None:
        """One call reads header and bytes, if they are there: each costs the interpreter's lock."""
        if self._failure is not None:
            raise TransferCut(str(self._failure))
        first = self._line[0]
        is_dropped = first.is_dropped
        until = monotonic() + seconds_for(first.length)
        header = memoryview(bytearray(HEADER.size))
        trailer = memoryview(bytearray(first.num_trailer_bytes))
        wanted = [*targets, trailer] if trailer else targets
        parts = [header] if is_dropped else [header, *wanted]
        num_left = len(parts) - 1
        while len(parts) > num_left:  # the header
            self._receive(parts, until, 0)
        number, num_bytes = HEADER.unpack(header)
        is_gone = is_dropped and (number, num_bytes) == (first.number, 0)
        if not is_gone and (number, num_bytes) != (first.number, first.length):
            raise self._another(first, number, num_bytes)
        if is_dropped and not is_gone:
            parts = list(wanted)
        while parts:
            self._receive(parts, until, socket.MSG_WAITALL)
        first.note(bytes(trailer))
        self._line.popleft()

    def _receive_next(self, targets: BlockViews, unit_bytes: int) -> bytes:
        """Read a piece that is wanted, in one compiled call: into its blocks, with the checksum of
        each unit."""
        first = self._line[0]
        until = monotonic() + seconds_for(first.length)
        header = HEADER.pack(first.number, first.length)
        receiving = Receiving(targets, unit_bytes, header, first.num_trailer_bytes)
        state: int = State.NOT_YET
        while state == State.NOT_YET:
            if self._failure is not None:
                raise TransferCut(str(self._failure))
            state = receiving.go_on(self._socket.fileno(), max(0.0, until - monotonic()))
            if state == State.NOT_YET and monotonic() > until:
                raise self._late()
        if state == State.ANOTHER:
            raise self._another(first, *HEADER.unpack(receiving.header))
        if state < 0:
            raise TransferCut(f"{self.name}: {os.strerror(-state)}")
        if state == State.ENDED or self._failure is not None:
            raise self._ended()
        first.note(receiving.trailer)
        self._line.popleft()
        return receiving.checksums

    def _receive(self, parts: list[memoryview], until: float, flags: int) -> None:
        """Fill some of the memory, and take it off.

        Raises TransferCut when the connection ends, and when `until` has passed.
        """
        num_bytes = -1
        try:
            num_bytes = self._socket.recvmsg_into(parts[:MAX_PARTS], 0, flags)[0]
        except BlockingIOError:
            pass  # not a byte came
        except OSError as error:
            raise TransferCut(f"{self.name}: {error}") from error
        if not num_bytes or self._failure is not None:
            raise self._ended()
        advance(parts, max(0, num_bytes))
        if parts and monotonic() > until:
            raise self._late()

    def _another(self, asked: Arrival, number: int, num_bytes: int) -> TransferCut:
        return TransferCut(
            f"{self.name}: asked for piece {asked.number} of {asked.length} bytes, "
            f"{num_bytes} of piece {number} came"
        )

    def _late(self) -> TransferCut:
        return TransferCut(f"{self.name}: a piece was not there in time")

    def _ended(self) -> TransferCut:
        return TransferCut(f"{self.name}: the sender has closed the connection")

    def _fail(self, cut: TransferCut) -> None:
        with self._guard:
            if self._failure is not None:
                return
            self._failure = cut
            with suppress(OSError):  # it may have ended
                self._socket.shutdown(socket.SHUT_RDWR)
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._on_broken, cut)


def _ignore(cut: TransferCut) -> None:
    """Do nothing: the connection is in nobody's use."""


def _copy(data: memoryview, targets: Sequence[memoryview]) -> None:
    start = 0
    for target in targets:
        target[:] = data[start : start + target.nbytes]
        start += target.nbytes
