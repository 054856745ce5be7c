"""Pieces sent to a socket by compiled code: every byte and its checksums, however they are read."""

from __future__ import annotations

import errno
import random
import socket
import struct
import threading

import pytest

from baton.core.block_views import BlockViews
from baton.kernels.cpu.library import library
from baton.kernels.paging.checksum import checksums
from baton.kernels.paging.piece_stream import GivingUp, State
from baton.kernels.paging.sending import AT_ONCE_BYTES, Sending

HEADER = struct.pack("<QQ", 7, 1234)
LIMIT_S = 60.0

pytestmark = pytest.mark.skipif(library() is None, reason="no compiled kernels here")


def ends() -> tuple[socket.socket, socket.socket]:
    """The first takes little before the second reads."""
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 12)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", 0, 1000))
    theirs.setblocking(False)
    return ours, theirs


@pytest.mark.parametrize(
    ("size", "unit_bytes"),
    [(96, 24), (3 * 8192, 8192), (3 * (AT_ONCE_BYTES // 2 + 64), AT_ONCE_BYTES // 2 + 64)],
    ids=["short units", "blocks of three units", "units of half of what is sent at once"],
)
def test_what_is_read_is_the_header_the_blocks_and_their_checksums(
    size: int, unit_bytes: int
) -> None:
    starts, rows = [4 * size, 0, size], [0, 5 * size + 64]
    memory = memoryview(random.Random(1).randbytes(11 * size))
    sources = BlockViews(memory, starts, size, rows)
    ours, theirs = ends()
    sending = Sending(sources, unit_bytes, HEADER)
    found = b""

    while (state := sending.go_on(ours.fileno(), 0.0, GivingUp())) == State.NOT_YET:
        found += theirs.recv(1 << 20)

    assert state == State.ALL
    ours.close()
    theirs.setblocking(True)
    while more := theirs.recv(1 << 20):
        found += more
    sums = checksums(sources, unit_bytes)
    own = checksums([sums], len(sums))
    assert found == HEADER + b"".join(sources) + sums + own
    theirs.close()


def test_it_says_when_the_other_end_has_left() -> None:
    ours, theirs = ends()
    theirs.close()

    found = Sending(BlockViews(memoryview(bytes(64)), [0], 64), 64, HEADER).go_on(
        ours.fileno(), LIMIT_S, GivingUp()
    )

    assert found == -errno.EPIPE
    ours.close()


def test_what_is_given_up_while_nobody_reads_ends_and_is_not_looked_at_any_more() -> None:
    size = 4 * AT_ONCE_BYTES
    memory, giving_up = memoryview(bytearray(size)), GivingUp()
    ours, theirs = ends()
    sending, found = Sending(BlockViews(memory, [0], size), 8192, HEADER), list[int]()

    def send() -> None:
        found.append(sending.go_on(ours.fileno(), LIMIT_S, giving_up))
        memory[:] = b"\1" * size  # another request's

    sender = threading.Thread(target=send)
    sender.start()
    theirs.setblocking(True)
    assert theirs.recv(len(HEADER)) == HEADER
    giving_up.set()
    sender.join(LIMIT_S / 2)

    assert found == [State.GIVEN_UP]
    assert sending.go_on(ours.fileno(), LIMIT_S, giving_up) == State.GIVEN_UP
    ours.close()
    while more := theirs.recv(1 << 20):
        assert not any(more)
    theirs.close()
