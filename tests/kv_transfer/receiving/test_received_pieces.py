"""What a receiver makes of the pieces of a transfer: right, damaged, malformed or of another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.kv_transfer.receiving.pieces import (
    NUM_BLOCKS,
    SENDER,
    checksums_of,
    filled,
    piece_of,
    resealed,
    reserved,
)
from tests.kv_transfer.replicas import (
    LAYOUT,
    TRANSFER,
    DecodeReplica,
)

from baton.core.block_views import BlockViews
from baton.core.errors import (
    CorruptPiece,
    StaleEpoch,
    UnknownTransfer,
)
from baton.core.ids import TransferId, new_epoch
from baton.core.kv_layout import SideCache
from baton.kv_transfer.handoff.lease import ReceiverState
from baton.kv_transfer.handoff.messages import BlockRange, KvPiece
from baton.kv_transfer.receiving.openings import is_asked_for, opening
from baton.kv_transfer.receiving.placing import place


def test_pieces_may_come_in_any_order_and_overlap() -> None:
    decode = reserved()
    accept, filling = decode.accept, decode.receiver.filling(TRANSFER)

    assert [*accept(piece_of(decode, 1, 2, 5)).blocks] == [2, 3, 4]
    assert [*accept(piece_of(decode, 0)).blocks] == [0, 1, 2, 3, 4, 5]
    assert filling.first_missing(0) == 0
    assert accept(piece_of(decode, 1, 0, 4)).num_duplicates == 2
    assert filling.first_missing(0) == 5
    assert not decode.receiver.is_complete(TRANSFER)
    assert [*accept(piece_of(decode, 1, 5, 6)).blocks] == [5]

    assert decode.receiver.is_complete(TRANSFER)
    decode.receiver.seal(TRANSFER)
    decode.receiver.seal(TRANSFER)
    decode.adopt()
    assert decode.holds_kv()
    assert decode.receiver.counters.num_bytes == NUM_BLOCKS * LAYOUT.block_bytes


@pytest.mark.parametrize("is_one_memory", [False, True])
def test_of_a_piece_that_has_come_in_part_only_the_rest_is_written(is_one_memory: bool) -> None:
    decode = reserved()
    decode.accept(piece_of(decode, 1, 0, 2))
    decode.accept(piece_of(decode, 1, 3, 4))
    piece, size = piece_of(decode, 1), LAYOUT.layer_block_bytes
    if is_one_memory:
        data = memoryview(b"".join(piece.views))
        piece = replace(piece, views=BlockViews(data, range(0, data.nbytes, size), size))

    assert [*decode.accept(piece).blocks] == [2, 4, 5]

    for plane in {*range(LAYOUT.num_layers)} - {1}:
        decode.accept(piece_of(decode, plane))
    decode.receiver.seal(TRANSFER)
    decode.adopt()
    assert decode.holds_kv()


def test_a_block_is_missing_until_its_right_bytes_are_written() -> None:
    decode = reserved()
    filling, good = decode.receiver.filling(TRANSFER), piece_of(decode, 0)
    flipped = bytes(good.views[0][:-1]) + bytes([good.views[0][-1] ^ 1])

    with pytest.raises(CorruptPiece, match="checksums"):
        decode.accept(replace(good, views=(memoryview(flipped), *good.views[1:])))
    assert filling.num_missing == NUM_BLOCKS * LAYOUT.num_layers
    for plane in range(1, LAYOUT.num_layers):
        decode.accept(piece_of(decode, plane))
    fill = filling.begin(0, good, decode.clock())
    assert filling.first_missing(0) == 0
    assert place(fill) == []
    filling.end(fill, True)

    assert filling.first_missing(0) == NUM_BLOCKS


def test_a_filled_block_is_never_replaced_by_other_bytes() -> None:
    decode = filled()
    piece = piece_of(decode, 0, 0, 2)
    other = resealed(piece, bytes(piece.views[0]), bytes(piece.views[1])[:-1] + b"\xff")

    with pytest.raises(CorruptPiece, match="block 1 has arrived before, with other bytes"):
        decode.accept(other)

    decode.receiver.seal(TRANSFER)
    decode.adopt()
    assert decode.holds_kv()


def test_what_came_wrong_may_come_again_but_only_with_the_checksum_it_should_have_had() -> None:
    decode = DecodeReplica()
    decode.reserve(SENDER)
    piece = piece_of(decode, 0, 0, 2)
    first, second = map(bytes, piece.views)
    wrong = replace(piece, views=(memoryview(first), memoryview(second[:-1] + b"\xff")))
    with pytest.raises(CorruptPiece, match="do not match") as refusal:
        decode.accept(wrong)
    assert (refusal.value.plane, refusal.value.blocks) == (0, range(2))

    # As from a sender whose memory has changed since: right by itself, and not what it computed.
    with pytest.raises(CorruptPiece, match="block 1 has arrived before") as refusal:
        decode.accept(resealed(wrong, *map(bytes, wrong.views)))
    assert not refusal.value.blocks

    assert [*decode.accept(piece).blocks] == [0, 1]


def test_a_piece_of_several_planes_is_taken_as_a_whole_or_where_it_is_missing() -> None:
    decode = DecodeReplica()
    decode.reserve(SENDER)
    filling = decode.receiver.filling(TRANSFER)
    planes = [piece_of(decode, plane) for plane in range(LAYOUT.num_layers)]
    views = tuple(view for plane in planes for view in plane.views)
    piece = replace(planes[0], num_planes=2, views=views, checksums=checksums_of(views))
    at = NUM_BLOCKS + 3  # in the second plane
    wrong = replace(piece, views=(*views[:at], memoryview(bytes(views[0])), *views[at + 1 :]))
    [whole] = filling.parts(0, wrong)
    assert whole is wrong

    with pytest.raises(CorruptPiece, match=r"planes 0 to 1: \(block, head\) .*block=3") as refusal:
        decode.accept(whole)

    refused = refusal.value
    assert (refused.plane, refused.num_planes, refused.blocks) == (0, 2, range(NUM_BLOCKS))
    assert decode.receiver.counters.num_bytes == 0
    decode.accept(planes[1])
    parts = list(filling.parts(0, piece))
    assert [part.planes for part in parts] == [range(1), range(1, 2)]
    assert [len(decode.accept(part).blocks) for part in parts] == [NUM_BLOCKS, 0]
    decode.receiver.seal(TRANSFER)
    decode.adopt()
    assert decode.holds_kv()


def test_a_piece_of_more_planes_than_there_are_is_refused_before_anything_is_made_of_each() -> None:
    decode = DecodeReplica()
    decode.reserve(SENDER)
    decode.accept(piece_of(decode, 1))
    wrong = replace(piece_of(decode, 0), num_planes=3)  # it may as well say 4 billion

    [whole] = decode.receiver.filling(TRANSFER).parts(0, wrong)

    assert whole is wrong
    with pytest.raises(CorruptPiece, match="there are 2 planes"):
        decode.accept(whole)


def test_planes_whose_blocks_are_only_as_long_do_not_come_in_one_piece() -> None:
    side = SideCache(name="index", layers=(0,), width=4, dtype="float32")
    layout = replace(LAYOUT, side_caches=(side,))
    assert len({plane.layer_block_bytes for plane in layout.planes}) == 1
    decode = DecodeReplica(layout=layout)
    decode.reserve(SENDER)
    views = [memoryview(bytes(LAYOUT.layer_block_bytes))] * (2 * NUM_BLOCKS)
    piece = replace(piece_of(decode, 0), num_planes=2, views=views, checksums=checksums_of(views))

    with pytest.raises(CorruptPiece, match="its planes are not alike"):
        decode.accept(piece)


def malformed() -> Iterator[tuple[str, KvPiece]]:
    decode = DecodeReplica()
    good = piece_of(decode, 0)
    size = LAYOUT.layer_block_bytes
    yield "short", replace(good, views=(*good.views[:-1], good.views[-1][:-1]))
    yield "empty", replace(good, views=(), checksums=b"")
    yield "checksum missing", replace(good, checksums=good.checksums[8:])
    yield "beyond the prompt", replace(good, first_block=1)
    yield "before the prompt", replace(good, first_block=-1)
    yield "too many blocks", resealed(good, *map(bytes, good.views), bytes(size))
    yield "more layers than there are", replace(good, num_planes=3)
    yield "half a block a layer", replace(good, num_planes=2, views=good.views[1:])
    yield "no such layer", replace(good, plane=LAYOUT.num_layers)
    yield "negative layer", replace(good, plane=-1)


@pytest.mark.parametrize("piece", [pytest.param(p, id=name) for name, p in malformed()])
def test_a_malformed_piece_writes_nothing_and_counts_against_its_source(piece: KvPiece) -> None:
    decode = reserved()

    with pytest.raises(CorruptPiece):
        decode.accept(replace(piece, receiver_epoch=decode.receiver.epoch))

    assert decode.receiver.counters.num_bytes == 0
    assert decode.receiver.counters.num_corrupt == {SENDER: 1}
    assert decode.receiver.state(TRANSFER) is ReceiverState.RESERVED


def test_pieces_of_other_incarnations_are_refused() -> None:
    decode = reserved()
    from_another = piece_of(decode, 0, sender=new_epoch())
    for_another = replace(piece_of(decode, 0), receiver_epoch=new_epoch())

    for stale in (from_another, for_another):
        with pytest.raises(StaleEpoch):
            decode.accept(stale)

    assert decode.receiver.counters.num_bytes == 0


def test_a_piece_of_another_transfer_is_refused_by_this_one() -> None:
    decode = reserved()
    other = replace(piece_of(decode, 0), transfer_id=TransferId("kv-2"))

    with pytest.raises(UnknownTransfer, match="kv-2 came for kv-1"):
        decode.receiver.filling(TRANSFER).begin(0, other, decode.clock())


def test_a_piece_is_asked_for_if_all_of_its_blocks_are() -> None:
    decode = DecodeReplica()
    reservation = decode.reserve(SENDER)
    assert reservation is not None
    asked = replace(opening(reservation, reservation.streams[0]), only=(BlockRange(0, 1, 3),))

    spans = [(first, stop) for first in range(5) for stop in range(first + 1, 5)]
    found = [span for span in spans if is_asked_for(piece_of(decode, 0, *span), asked)]

    assert found == [(1, 2), (1, 3), (2, 3)]
    assert not is_asked_for(piece_of(decode, 1, 1, 3), asked)
