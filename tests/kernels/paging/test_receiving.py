"""Pieces read from a socket by compiled code: every byte to its place, however they come."""

from __future__ import annotations

import random
import socket
import struct
import threading

import pytest

from baton.core.block_views import BlockViews
from baton.kernels.cpu.library import library
from baton.kernels.paging.checksum import checksums
from baton.kernels.paging.piece_stream import State
from baton.kernels.paging.receiving import BUFFER_BYTES, Receiving, can_receive

HEADER = struct.pack("<QQ", 7, 1234)
TRAILER = b"behind"
LIMIT_S = 60.0

pytestmark = pytest.mark.skipif(library() is None, reason="no compiled kernels here")


def ends(*, slice_s: float) -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair()
    limit = struct.pack("@ll", int(slice_s), int(slice_s % 1 * 1e6))
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    return ours, theirs


@pytest.mark.parametrize(
    ("size", "unit_bytes"),
    [(96, 24), (3 * 8192, 8192), (3 * (BUFFER_BYTES // 2 + 64), BUFFER_BYTES // 2 + 64)],
    ids=["short units", "blocks of three units", "units of half a buffer"],
)
def test_blocks_in_rows_are_filled_and_summed_up_as_their_bytes_come(
    size: int, unit_bytes: int
) -> None:
    starts, rows = [4 * size, 0, 2 * size], [0, 5 * size + 64]
    memory = memoryview(bytearray(11 * size))
    targets = BlockViews(memory, starts, size, rows)
    data = random.Random(1).randbytes(len(targets) * size)
    ours, theirs = ends(slice_s=0.01)
    receiving = Receiving(targets, unit_bytes, HEADER, len(TRAILER))

    assert receiving.go_on(ours.fileno(), LIMIT_S) == State.NOT_YET
    theirs.sendall(HEADER[:5])
    assert receiving.go_on(ours.fileno(), LIMIT_S) == State.NOT_YET
    theirs.sendall(HEADER[5:] + data[:17])
    assert receiving.go_on(ours.fileno(), LIMIT_S) == State.NOT_YET
    sending = threading.Thread(target=theirs.sendall, args=(data[17:] + TRAILER + b"next",))
    sending.start()
    while (state := receiving.go_on(ours.fileno(), 0.0)) == State.NOT_YET:
        pass

    assert state == State.ALL
    sending.join()
    assert b"".join(targets) == data
    assert receiving.checksums == checksums(targets, unit_bytes)
    assert receiving.trailer == TRAILER
    assert ours.recv(16) == b"next"
    for at in (size, 3 * size, 6 * size + 64, 8 * size + 64):
        assert not any(memory[at : at + size])
    ours.close()
    theirs.close()


def test_what_is_not_the_piece_is_not_written() -> None:
    targets = BlockViews(memoryview(bytearray(64)), [0], 64)
    ours, theirs = ends(slice_s=LIMIT_S)
    theirs.sendall(bytes(16) + b"\1" * 64)
    receiving = Receiving(targets, 64, HEADER)

    assert receiving.go_on(ours.fileno(), LIMIT_S) == State.ANOTHER

    assert receiving.header == bytes(16)
    assert not any(targets.memory)
    assert not can_receive(BUFFER_BYTES + 1)
    ours.close()
    theirs.close()


def test_it_says_when_the_other_end_has_left_within_a_piece() -> None:
    ours, theirs = ends(slice_s=LIMIT_S)
    theirs.sendall(HEADER + b"\1" * 63)
    theirs.close()
    receiving = Receiving(BlockViews(memoryview(bytearray(64)), [0], 64), 64, HEADER)

    found = [receiving.go_on(ours.fileno(), LIMIT_S) for _ in range(2)]

    assert found == [State.NOT_YET, State.ENDED]
    ours.close()
