"""The checksums that follow a piece over raw TCP, and pieces that do not match them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.kv_transfer.replicas import LAYOUT, PROMPT, kv_of
from tests.kv_transfer.world import KV_BYTES, NUM_BLOCKS, connected

from baton.core.errors import CorruptPiece
from baton.kv_transfer.layouts.integrity import (
    CHECKSUM_BYTES,
    checksums_of,
    with_own_checksum,
)
from baton.kv_transfer.transport.control import client
from baton.kv_transfer.transport.control.wire import open_to_proto
from baton.kv_transfer.transport.lent import Loan
from baton.kv_transfer.transport.tcp import connection as connections
from baton.kv_transfer.transport.tcp.frames import HEADER
from baton.kv_transfer.transport.tcp.serving import ServedConnection
from baton.proto import kv_pb2 as pb


class Corrupting:
    """Corrupts one piece that P sends: header, units and their checksums."""

    def __init__(self, corrupt: Callable[[bytearray, int], None], number: int = 1) -> None:
        self._corrupt = corrupt
        self._num_before = number

    def send(self, connection: ServedConnection, loan: Loan) -> bool:
        piece = loan.piece
        data = b"".join(piece.views)
        sums = with_own_checksum(checksums_of(piece.views, piece.unit_bytes))
        message = bytearray(HEADER.pack(loan.number, len(data) + len(sums)) + data + sums)
        self._num_before -= 1
        if not self._num_before:
            self._corrupt(message, HEADER.size + len(data))
        connection._socket.sendall(message)
        return len(message) == HEADER.size + len(data) + len(sums)


@pytest.fixture(params=[True, False], ids=["compiled", "not compiled"])
def reading(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.param:
        monkeypatch.setattr(connections, "can_receive", lambda unit_bytes: False)


def flip_a_byte(message: bytearray, end: int) -> None:
    message[end - 1] ^= 1


def flip_a_checksum(message: bytearray, end: int) -> None:
    message[end] ^= 1


def flip_the_checksum_of_checksums(message: bytearray, end: int) -> None:
    message[-1] ^= 1


def sum_up_other_bytes(message: bytearray, end: int) -> None:
    """As if they had changed where they lie, before they were summed up."""
    other = bytearray(message[end:-CHECKSUM_BYTES])
    other[0] ^= 1
    message[end:] = with_own_checksum(bytes(other))


def cut_within_the_checksums(message: bytearray, end: int) -> None:
    flip_a_byte(message, end)  # it must not be taken for right
    del message[end + 3 :]


@pytest.mark.usefixtures("reading")
@pytest.mark.parametrize(
    ("corrupt", "num_asked_again", "num_reopened"),
    [
        (flip_a_byte, 1, 0),
        (flip_a_checksum, 1, 0),
        (flip_the_checksum_of_checksums, 1, 0),
        (cut_within_the_checksums, 0, 1),
    ],
)
async def test_a_piece_that_its_checksums_do_not_prove_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
    corrupt: Callable[[bytearray, int], None],
    num_asked_again: int,
    num_reopened: int,
) -> None:
    corrupting = Corrupting(corrupt)
    monkeypatch.setattr(ServedConnection, "_send_summed", lambda *at: corrupting.send(*at))
    async with connected("tcp") as it:
        reservation = await it.grant()
        await it.compute()

        report = await it.fetch(reservation)

        assert (report.num_asked_again, report.num_reopened) == (num_asked_again, num_reopened)
        assert it.decode.receiver.counters.num_bytes == KV_BYTES
        await it.on_d.call(it.decode.adopt)
        assert it.decode.holds_kv()
        await it.assert_nothing_is_left()


@pytest.mark.usefixtures("reading")
@pytest.mark.parametrize("block_size", [LAYOUT.block_size, 2 * LAYOUT.block_size])
async def test_a_piece_that_comes_again_with_another_checksum_is_not_trusted_and_not_kept(
    monkeypatch: pytest.MonkeyPatch, block_size: int
) -> None:
    corrupting = Corrupting(sum_up_other_bytes)
    monkeypatch.setattr(ServedConnection, "_send_summed", lambda *at: corrupting.send(*at))
    decode_layout = replace(LAYOUT, block_size=block_size)
    async with connected("tcp", decode_layout=decode_layout) as it:
        reservation = await it.grant()
        await it.compute()

        with pytest.raises(CorruptPiece, match="has arrived before, with other bytes"):
            await it.fetch(reservation)

        assert 2 in it.fetcher._scores.metrics(0.0).values(), "both count against the sender"
        first = kv_of(PROMPT, 0, 0, decode_layout)
        written = {bytes(it.decode.cache.view(block, 0)) for block in range(NUM_BLOCKS)}
        assert bytes(len(first)) in written and first not in written
        await it.assert_nothing_is_left()


async def test_to_a_receiver_that_does_not_read_checksums_behind_the_bytes_they_are_announced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def older(*args: Any, **more: Any) -> pb.OpenRequest:
        opening = open_to_proto(*args, **more)
        opening.ClearField("reads_sums_behind")
        return opening

    monkeypatch.setattr(client, "open_to_proto", older)
    monkeypatch.setattr(ServedConnection, "_send_summed", None)
    async with connected("tcp") as it:
        reservation = await it.grant()
        await it.compute()

        await it.fetch(reservation)

        await it.on_d.call(it.decode.adopt)
        assert it.decode.holds_kv()
        await it.assert_nothing_is_left()
