"""P's end of one data connection, and the thread that sends on it what D asks for."""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from baton.core.block_views import BlockViews, stretches
from baton.core.clock import monotonic
from baton.kernels.paging.piece_stream import State
from baton.kernels.paging.sending import Sending, can_send
from baton.kv_transfer.handoff.transport import LentPiece
from baton.kv_transfer.layouts.integrity import CHECKSUM_BYTES, checksums_of, with_own_checksum
from baton.kv_transfer.transport.lent import Loan, Loans
from baton.kv_transfer.transport.tcp.frames import (
    ASK,
    HEADER,
    MAX_PARTS,
    SLICE_S,
    advance,
    make_blocking,
    seconds_for,
)

GIVEN_UP_WITHIN_S = 0.05
"""A call that waits for a D that does not read comes back after so long, to see whether P has given
the piece up."""
ENOUGH_BYTES = 1 << 20
"""Pieces are sent in one call until they have so many together."""
MAX_ASKS = 64
"""Read at once."""
IDLE_S = 600.0
"""A connection on which nothing is asked for so long is closed: no prompt is computed so slowly,
and D closes by itself what no stream uses."""


class ServedConnection:
    """Ends by itself: when D leaves, asks nothing for long, or takes too slowly."""

    def __init__(
        self,
        connection: socket.socket,
        loans: Loans,
        on_ended: Callable[[ServedConnection], None],
    ) -> None:
        """`on_ended` is called on the connection's thread."""
        make_blocking(connection, receive_s=IDLE_S, send_s=GIVEN_UP_WITHIN_S)
        self._socket = connection
        self._loans = loans
        self._on_ended = on_ended
        self._is_closed = False
        self.idle_since: float | None = monotonic()
        """None while there is something to send."""
        self._guard = threading.Lock()
        """Guards the socket's end: its number may be another's at once."""
        threading.Thread(target=self._serve, name="kv by tcp", daemon=True).start()

    def close(self) -> None:
        """Return at once; its thread ends soon. From any thread."""
        self._is_closed = True
        with self._guard, suppress(OSError):  # it may have ended
            self._socket.shutdown(socket.SHUT_RDWR)

    # On its thread.

    def _serve(self) -> None:
        asked = bytearray()
        try:
            while self._hear(asked):
                whole = len(asked) // ASK.size * ASK.size
                asks = list(ASK.iter_unpack(asked[:whole]))
                del asked[:whole]
                self.idle_since = None
                if not self._answer(asks):
                    break
                self.idle_since = monotonic()
        except OSError:
            pass  # D is gone, or has asked for nothing for long
        with self._guard:
            self._socket.close()
        self._on_ended(self)

    def _hear(self, asked: bytearray) -> bool:
        """Wait for at least one more ask; False at the end."""
        while len(asked) < ASK.size:
            more = self._socket.recv(MAX_ASKS * ASK.size)  # BlockingIOError after `IDLE_S`
            if not more:
                return False
            asked += more
        return True

    def _answer(self, asks: Iterable[tuple[int, bytes]]) -> bool:
        """Send the pieces, several small ones together. False if it cannot go on."""
        waiting = deque(asks)
        while waiting:
            if not self._send_next(waiting):
                return False
        return True

    def _send_next(self, waiting: deque[tuple[int, bytes]]) -> bool:
        """Claims no more than it sends at once: what is claimed, P cannot have back."""
        parts: list[memoryview] = []
        loans: deque[tuple[int, Loan]] = deque()
        num_bytes = 0
        summing: Loan | None = None
        try:
            while waiting and num_bytes < ENOUGH_BYTES and summing is None:
                number, secret = waiting.popleft()
                loan = self._loans.claim(number, secret)
                length = 0 if loan is None else _length(loan.piece)
                end = num_bytes + HEADER.size + length
                if loan is not None:
                    loans.append((end, loan))
                    if _is_checksummed_while_sent(loan.piece):
                        summing = loan
                        continue
                num_bytes = end
                parts.append(memoryview(HEADER.pack(number, length)))
                if loan is not None:
                    parts += stretches(loan.piece.views)
                    parts += _checksums_behind(loan.piece)
            return self._send(parts, loans, num_bytes) and (
                summing is None or self._send_summed(summing)
            )
        finally:
            for _, loan in loans:
                self._loans.sent(loan)

    def _send(
        self, parts: list[memoryview], loans: deque[tuple[int, Loan]], num_bytes: int
    ) -> bool:
        """`loans`, each with the number of bytes behind which it ends, leave as their bytes do.
        One that ends behind `num_bytes` is sent next: this sending ends early if that one is
        wanted back, too."""
        begun = monotonic()
        num_sent = 0
        while parts:
            with suppress(BlockingIOError):  # not a byte went
                num_now = self._socket.sendmsg(parts[:MAX_PARTS])
                advance(parts, num_now)
                num_sent += num_now
            while loans and loans[0][0] <= num_sent:
                self._loans.sent(loans.popleft()[1])
            if parts and self._is_given_up([loan for _, loan in loans], num_bytes, begun):
                return False
        return True

    def _send_summed(self, loan: Loan) -> bool:
        """A piece in one compiled call, if nothing holds it up."""
        views, unit_bytes = loan.piece.views, loan.piece.unit_bytes
        assert isinstance(views, BlockViews)
        length = _length(loan.piece)
        sending = Sending(views, unit_bytes, HEADER.pack(loan.number, length))
        socket, begun = self._socket.fileno(), monotonic()
        while (state := sending.go_on(socket, SLICE_S, loan.giving_up)) == State.NOT_YET:
            if self._is_given_up([loan], length, begun):
                return False
        return state == State.ALL

    def _is_given_up(self, loans: Sequence[Loan], num_bytes: int, begun: float) -> bool:
        """Whether the rest is not sent: the connection is closed, P has given a piece up, or D does
        not read one that is wanted back, or reads too slowly."""
        elapsed_s = monotonic() - begun
        return (
            self._is_closed
            or any(loan.giving_up.is_set for loan in loans)
            or (elapsed_s > SLICE_S and any(loan.is_wanted_back for loan in loans))
            or elapsed_s > seconds_for(num_bytes)
        )


def _is_checksummed_while_sent(piece: LentPiece) -> bool:
    return bool(piece.unit_bytes) and isinstance(piece.views, BlockViews) and can_send()


def _length(piece: LentPiece) -> int:
    """Bytes behind its header: its own, and the checksums that follow them."""
    if not piece.unit_bytes:
        return piece.num_bytes
    return piece.num_bytes + CHECKSUM_BYTES * (piece.num_bytes // piece.unit_bytes + 1)


def _checksums_behind(piece: LentPiece) -> list[memoryview]:
    """The checksums that follow a piece; none if they were announced."""
    if not piece.unit_bytes:
        return []
    return [memoryview(with_own_checksum(checksums_of(piece.views, piece.unit_bytes)))]
