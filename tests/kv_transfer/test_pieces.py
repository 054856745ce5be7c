from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kv_transfer.replicas import LAYOUT

from baton.core.errors import LayoutMismatch
from baton.core.ids import Epoch, TransferId
from baton.kv_transfer.integrity import Unit, bad_units, combined_checksum, unit_checksums
from baton.kv_transfer.layout import check_layouts
from baton.kv_transfer.pieces import Reading, cuts, make_piece
from baton.kv_transfer.transport import grpc as grpc_transport


def make_reading(num_blocks: int, first_block: int = 0) -> Reading:
    size = LAYOUT.layer_block_bytes
    return Reading(
        transfer_id=TransferId("kv"),
        sender_epoch=Epoch("p"),
        receiver_epoch=Epoch("d"),
        layout=LAYOUT,
        first_block=first_block,
        views=tuple(
            tuple(memoryview(bytes([16 * layer + block]) * size) for block in range(num_blocks))
            for layer in range(LAYOUT.num_layers)
        ),
    )


@given(num_blocks=st.integers(1, 9), first_block=st.integers(0, 5), max_bytes=st.integers(1, 700))
def test_pieces_cover_a_reading_once_in_layer_order_and_within_their_size(
    num_blocks: int, first_block: int, max_bytes: int
) -> None:
    reading = make_reading(num_blocks, first_block)

    pieces = [make_piece(reading, cut) for cut in cuts(reading, max_bytes)]

    size = LAYOUT.layer_block_bytes
    covered = [
        (piece.layer, piece.first_block + index)
        for piece in pieces
        for index in range(len(piece.data) // size)
    ]
    stop = first_block + num_blocks
    assert covered == [(layer, b) for layer in range(2) for b in range(first_block, stop)]
    assert all(len(piece.data) <= max(max_bytes, size) for piece in pieces)
    joined = b"".join(bytes(piece.data) for piece in pieces)
    assert joined == b"".join(bytes(view) for layer in reading.views for view in layer)


@given(byte=st.integers(0, 3 * LAYOUT.layer_block_bytes - 1), bit=st.integers(0, 7))
def test_any_flipped_bit_is_found_in_its_block_and_head(byte: int, bit: int) -> None:
    reading = make_reading(3, first_block=4)
    piece = make_piece(reading, next(iter(cuts(reading, 1 << 20))))
    assert bad_units(piece, LAYOUT) == []
    data = bytearray(piece.data)
    data[byte] ^= 1 << bit

    bad = bad_units(replace(piece, data=bytes(data)), LAYOUT)

    block, rest = divmod(byte, LAYOUT.layer_block_bytes)
    assert bad == [Unit(4 + block, rest // LAYOUT.unit_bytes)]


def test_checksums_are_xxh3_with_64_bits_and_one_for_each_unit() -> None:
    twice = unit_checksums(memoryview(bytes(64)), 32)

    assert combined_checksum(()) == 0x2D06_8005_38D3_94C2  # the specification's, of no bytes
    assert twice == unit_checksums(bytes(32), 32) * 2


def test_equal_layouts_pass() -> None:
    check_layouts(LAYOUT, replace(LAYOUT))


def test_a_mismatch_names_every_field_that_differs_and_no_other() -> None:
    receiver = replace(LAYOUT, model_fingerprint=b"\xab\xcd", dtype="float16", num_kv_heads=1)

    with pytest.raises(LayoutMismatch) as caught:
        check_layouts(LAYOUT, receiver)

    message = str(caught.value)
    assert "model_fingerprint is 6d6f64656c at the sender, abcd at the receiver" in message
    assert "dtype is float32 at the sender, float16 at the receiver" in message
    assert "num_kv_heads is 2 at the sender, 1 at the receiver" in message
    assert "head_dim" not in message


def test_a_piece_survives_the_wire() -> None:
    reading = make_reading(3, first_block=2)
    piece = make_piece(reading, next(iter(cuts(reading, 1 << 20))))

    message = grpc_transport.piece_to_proto(piece)
    read = type(message).FromString(message.SerializeToString())

    assert grpc_transport.piece_from_proto(read) == piece
