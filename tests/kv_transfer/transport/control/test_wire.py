"""A piece as bytes: what any protobuf library reads, and what is refused."""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.core.errors import TransferCut
from baton.core.ids import TransferId, new_epoch
from baton.kv_transfer.handoff.transport import LentPiece, PackedPiece
from baton.kv_transfer.layouts.integrity import checksums_of
from baton.kv_transfer.transport.control.wire import (
    MAX_TICKETS_BYTES,
    THE_END,
    THE_END_OF_THIS,
    read_pieces,
    write_carried,
    write_piece,
)
from baton.proto import kv_pb2 as pb

numbers = st.integers(0, 2**32 - 1)


def lent(layer: int, first_block: int, views: list[bytes], checksums: list[int]) -> LentPiece:
    return LentPiece(
        transfer_id=TransferId("kv-1"),
        sender_epoch=new_epoch(),
        receiver_epoch=new_epoch(),
        plane=layer,
        first_block=first_block,
        views=tuple(map(memoryview, views)),
        blocks=tuple(range(len(views))),
        checksums=struct.pack(f"<{len(checksums)}Q", *checksums),
        give_back=lambda: None,
    )


@given(
    numbers,
    numbers,
    st.lists(st.binary(min_size=1), min_size=1),
    st.lists(st.integers(0, 2**64 - 1)),
)
def test_what_is_written_is_read_here_and_by_protobuf(
    layer: int, first_block: int, views: list[bytes], checksums: list[int]
) -> None:
    piece = lent(layer, first_block, views, checksums)

    message = write_piece(piece, PackedPiece(data=piece.views))
    [(header, data)] = read_pieces(message).pieces

    assert bytes(data) == b"".join(views)
    assert (header.plane, header.first_block, header.num_blocks) == (layer, first_block, len(views))
    assert (header.sender_epoch, header.checksums) == (piece.sender_epoch, piece.checksums)
    [whole] = pb.KvPieces.FromString(message).pieces
    assert whole.data == data
    whole.ClearField("data")
    assert whole == header


@given(st.binary(), numbers)
def test_what_protobuf_wrote_is_read(data: bytes, layer: int) -> None:
    first = pb.KvPiece(data=data, plane=layer, ticket=b"t", num_blocks=3)
    message = pb.KvPieces(pieces=[first, pb.KvPiece(plane=7)])

    [(header, view), (second, nothing)] = read_pieces(message.SerializeToString()).pieces

    assert (bytes(view), header.plane, header.ticket, header.num_blocks) == (data, layer, b"t", 3)
    assert (second.plane, bytes(nothing)) == (7, b"")


def test_messages_end_to_end_are_one_message_of_all_their_pieces() -> None:
    pieces = [lent(layer, 0, [b"abcd"] * 2, [layer]) for layer in range(3)]
    packed = [
        PackedPiece(data=pieces[0].views),
        PackedPiece(ticket=b"t"),
        PackedPiece(data=pieces[2].views),
    ]

    message = b"".join(map(write_piece, pieces, packed))

    found = [
        (header.plane, header.ticket, bytes(data)) for header, data in read_pieces(message).pieces
    ]
    assert found == [(0, b"", b"abcd" * 2), (1, b"t", b""), (2, b"", b"abcd" * 2)]


@given(st.binary(max_size=64))
def test_garbage_is_read_or_refused_and_nothing_else(garbage: bytes) -> None:
    with suppress(TransferCut):
        read_pieces(garbage)


@given(st.data())
def test_a_piece_cut_short_is_refused(data: st.DataObject) -> None:
    piece = lent(1, 2, [b"abcd" * 9] * 2, [1, 2])
    message = write_piece(piece, PackedPiece(data=piece.views))

    with pytest.raises(TransferCut, match="cannot be read"):
        read_pieces(message[: data.draw(st.integers(len(message) - 72, len(message) - 1))])


@pytest.mark.parametrize("num_bytes", [1, MAX_TICKETS_BYTES])
@pytest.mark.parametrize("end", [b"", THE_END, THE_END_OF_THIS])
def test_the_end_is_read_behind_the_last_piece_and_never_in_its_bytes(
    num_bytes: int, end: bytes
) -> None:
    piece = lent(1, 2, [THE_END_OF_THIS * num_bytes], [1])

    heard = read_pieces(write_piece(piece, PackedPiece(data=piece.views)) + end)

    assert len(heard.pieces) == 1
    assert heard.is_end == bool(end)
    assert heard.is_kept == (end == THE_END_OF_THIS)


@given(st.integers(1, 9), st.integers(1, 40), st.integers(1, 300))
def test_a_piece_is_the_same_message_if_it_is_summed_up_as_it_is_copied(
    num_views: int, num_units: int, unit_bytes: int
) -> None:
    views = [os.urandom(num_units * unit_bytes) for _ in range(num_views)]
    bare = lent(3, 1, views, [])
    checksums = checksums_of(views, unit_bytes)

    carried = write_carried(bare, unit_bytes)

    whole = replace(bare, checksums=checksums)
    assert carried.checksums == checksums
    assert carried.message == write_piece(whole, PackedPiece(data=bare.views))
