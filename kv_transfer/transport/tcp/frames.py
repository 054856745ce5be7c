"""The messages on a data connection, and its admission. Little-endian, of fixed lengths.

    D                                            P
      | --- HELLO: magic, epoch, admission ----> |   once, within seconds; else the listener shuts
      | <-- WELCOME ---------------------------- |
      | --- ASK: piece, its secret ------------> |   as soon as it is announced; many ahead
      | <== HEADER: piece, length; its bytes === |   in the order asked; length 0: not lent any more
      | <== the checksums of its units ========= |   counted in the length; none if announced
      | <== the checksum of these ============== |   likewise: what is damaged on the way, is known

Both secrets came by the control channel: the admission with the answer to `Meet`, a piece's own in
its ticket. They keep strangers and stray bytes out. A process that listens on the wire reads
everything, so where TLS is asked for this transport is refused.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
import struct
from dataclasses import dataclass

from baton.core.errors import TransferCut
from baton.core.ids import Epoch
from baton.kv_transfer.layouts.integrity import CHECKSUM_BYTES
from baton.kv_transfer.transport.lent import SECRET_BYTES, Loan

MAGIC = b"baton-kv"
WELCOME = b"\1"
EPOCH_BYTES = 64
MAX_PIECE_BYTES = 1 << 30
MAX_PARTS = 1024
"""Memory areas in one system call: IOV_MAX of Linux."""
PATIENCE_S = 10.0
MIN_BYTES_PER_S = 4 << 20
"""Least rate of a piece, which may take `PATIENCE_S` besides."""
SLICE_S = 1.0
"""A call that moves no byte comes back after so long, to see whether it is still wanted."""

_KEEPALIVE = {socket.TCP_KEEPIDLE: 20, socket.TCP_KEEPINTVL: 5, socket.TCP_KEEPCNT: 4}

HELLO = struct.Struct(f"<8s{EPOCH_BYTES}s32s")
ASK = struct.Struct(f"<Q{SECRET_BYTES}s")
HEADER = struct.Struct("<QQ")
_TICKET = struct.Struct(f"<Q{SECRET_BYTES}sQ")
_SUMMED_TICKET = struct.Struct(f"<Q{SECRET_BYTES}sQQ")


@dataclass(frozen=True, slots=True)
class Ticket:
    number: int
    """Number of the piece at its P: never used again."""
    secret: bytes
    block_bytes: int
    """Bytes of each of the blocks, which come end to end."""
    unit_bytes: int = 0
    """Where checksums follow, one of each so many bytes; else 0."""

    def pack(self) -> bytes:
        if self.unit_bytes:
            return _SUMMED_TICKET.pack(self.number, self.secret, self.block_bytes, self.unit_bytes)
        return _TICKET.pack(self.number, self.secret, self.block_bytes)

    def num_checksum_bytes(self, num_blocks: int) -> int:
        """Bytes of the checksums of so many blocks, which follow them."""
        if not self.unit_bytes:
            return 0
        return CHECKSUM_BYTES * num_blocks * (self.block_bytes // self.unit_bytes)

    @property
    def ask(self) -> bytes:
        return ASK.pack(self.number, self.secret)


def ticket_of(loan: Loan) -> Ticket:
    piece = loan.piece
    return Ticket(loan.number, loan.secret, piece.num_bytes // len(piece.views), piece.unit_bytes)


def read_ticket(data: bytes, num_blocks: int) -> Ticket:
    """Raises TransferCut for what no piece could have."""
    fields = _SUMMED_TICKET if len(data) == _SUMMED_TICKET.size else _TICKET
    try:
        ticket = Ticket(*fields.unpack(data))
    except struct.error as error:
        raise TransferCut(f"a ticket that cannot be read: {error}") from error
    if ticket.unit_bytes and ticket.block_bytes % ticket.unit_bytes:
        raise TransferCut(
            f"a ticket for blocks of {ticket.block_bytes} bytes, in units of {ticket.unit_bytes}"
        )
    num_sums = ticket.num_checksum_bytes(num_blocks)
    if not 0 < num_blocks * ticket.block_bytes + num_sums <= MAX_PIECE_BYTES:
        raise TransferCut(
            f"a ticket for {num_blocks} blocks of {ticket.block_bytes} bytes and {num_sums} bytes "
            f"of checksums; a piece has at most {MAX_PIECE_BYTES}"
        )
    return ticket


def admission_of(key: bytes, receiver: Epoch) -> bytes:
    """What one incarnation of a D must show to P, which has drawn the key and remembers no D."""
    return hmac.digest(key, receiver.encode(), hashlib.sha256)


def hello_of(receiver: Epoch, admission: bytes) -> bytes:
    return HELLO.pack(MAGIC, receiver.encode(), admission)


def is_admitted(key: bytes, hello: bytes) -> bool:
    magic, epoch, admission = HELLO.unpack(hello)
    expected = hmac.digest(key, epoch.rstrip(b"\0"), hashlib.sha256)
    return magic == MAGIC and hmac.compare_digest(admission, expected)


def seconds_for(num_bytes: int) -> float:
    return PATIENCE_S + num_bytes / MIN_BYTES_PER_S


def make_blocking(connection: socket.socket, *, receive_s: float, send_s: float) -> None:
    """Make a socket blocking, for a thread: a call waits so long, then tells what it moved, or
    raises BlockingIOError."""
    # Not `settimeout`: it would ask the system before each call whether there is anything.
    connection.setblocking(True)
    for option, seconds in ((socket.SO_RCVTIMEO, receive_s), (socket.SO_SNDTIMEO, send_s)):
        limit = struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))  # struct timeval
        connection.setsockopt(socket.SOL_SOCKET, option, limit)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, number in _KEEPALIVE.items():  # a host that is gone closes nothing
        connection.setsockopt(socket.IPPROTO_TCP, option, number)


def advance(parts: list[memoryview], num_bytes: int) -> None:
    """Take so many bytes off the front."""
    num_whole = 0
    while num_whole < len(parts) and num_bytes >= parts[num_whole].nbytes:
        num_bytes -= parts[num_whole].nbytes
        num_whole += 1
    del parts[:num_whole]
    if num_bytes:
        parts[0] = parts[0][num_bytes:]
