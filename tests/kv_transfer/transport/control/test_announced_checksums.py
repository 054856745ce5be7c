"""Checksums that are damaged within their announcement cost their piece, not the prompt."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.kv_transfer.world import KV_BYTES, connected

from baton.kv_transfer.transport.control import client
from baton.kv_transfer.transport.control.wire import PiecesMessage, read_pieces
from baton.kv_transfer.transports import usable_transports
from baton.proto import kv_pb2 as pb

ANNOUNCING = [name for name in usable_transports() if name not in ("memory", "tcp")]


def flipped(data: bytes) -> bytes:
    return bytes((data[0] ^ 1,)) + data[1:]


def flip_a_checksum(piece: pb.KvPiece) -> None:
    piece.checksums = flipped(piece.checksums)


def flip_their_own(piece: pb.KvPiece) -> None:
    piece.own_checksum = flipped(piece.own_checksum)


def lose_all(piece: pb.KvPiece) -> None:
    piece.ClearField("checksums")


def announce_as_older(piece: pb.KvPiece) -> None:
    piece.ClearField("own_checksum")


@pytest.mark.parametrize("name", ANNOUNCING)
@pytest.mark.parametrize("joins_planes", [False, True])
@pytest.mark.parametrize(
    ("change", "num_asked_again"),
    [(flip_a_checksum, 1), (flip_their_own, 1), (lose_all, 1), (announce_as_older, 0)],
)
async def test_a_piece_whose_announced_checksums_are_damaged_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    joins_planes: bool,
    change: Callable[[pb.KvPiece], None],
    num_asked_again: int,
) -> None:
    seen: list[pb.KvPiece] = []

    def read(message: bytes) -> PiecesMessage:
        found = read_pieces(message)
        for header, _ in found.pieces:
            if not seen:
                change(header)
            seen.append(header)
        return found

    monkeypatch.setattr(client, "read_pieces", read)
    async with connected(name, joins_planes=joins_planes) as it:
        reservation = await it.grant()
        await it.compute()

        report = await it.fetch(reservation)

        assert (report.num_asked_again, report.num_reopened) == (num_asked_again, 0)
        assert all("checksums were damaged on the way" in note for note in report.notes)
        assert sum(it.decode.receiver.counters.num_corrupt.values()) == num_asked_again
        assert it.decode.receiver.counters.num_bytes == KV_BYTES
        await it.on_d.call(it.decode.adopt)
        assert it.decode.holds_kv()
        await it.assert_nothing_is_left()
