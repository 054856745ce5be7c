from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from tests.kv_transfer.replicas import (
    LAYOUT,
    PROMPT,
    TIME_LEFT_S,
    TRANSFER,
    DecodeReplica,
    kv_of,
)

from baton.core.block_views import BlockViews
from baton.core.errors import (
    CorruptPiece,
    StaleEpoch,
    TransferAborted,
    TransferError,
    UnknownTransfer,
)
from baton.core.ids import Epoch, TransferId, new_epoch
from baton.core.kv_layout import SideCache
from baton.core.kv_pool import Holder, HolderKind
from baton.engine.blocks.block_bytes import Targets
from baton.kv_transfer.handoff.lease import ReceiverEvent, ReceiverState
from baton.kv_transfer.handoff.messages import BlockRange, KvPiece
from baton.kv_transfer.layouts.integrity import unit_checksums
from baton.kv_transfer.receiving.openings import is_asked_for, opening
from baton.kv_transfer.receiving.placing import place
from baton.kv_transfer.receiving.receiver import AbortReason, ReceiverConfig

SENDER = new_epoch()
NUM_BLOCKS = LAYOUT.num_blocks_for(len(PROMPT))


def reserved(config: ReceiverConfig | None = None) -> DecodeReplica:
    decode = DecodeReplica(config=config)
    assert decode.reserve(SENDER) is not None
    return decode


def piece_of(
    decode: DecodeReplica,
    layer: int,
    first_block: int = 0,
    stop: int = NUM_BLOCKS,
    sender: Epoch = SENDER,
) -> KvPiece:
    views = tuple(memoryview(kv_of(PROMPT, block, layer)) for block in range(first_block, stop))
    return KvPiece(
        transfer_id=TRANSFER,
        sender_epoch=sender,
        receiver_epoch=decode.receiver.epoch,
        plane=layer,
        first_block=first_block,
        views=views,
        checksums=checksums_of(views),
    )


def checksums_of(views: Sequence[memoryview]) -> bytes:
    return unit_checksums(b"".join(views), LAYOUT.unit_bytes)


def resealed(piece: KvPiece, *blocks: bytes) -> KvPiece:
    """Other bytes, with checksums that match them."""
    views = tuple(memoryview(block) for block in blocks)
    return replace(piece, views=views, checksums=checksums_of(views))


def filled() -> DecodeReplica:
    decode = reserved()
    for layer in range(LAYOUT.num_layers):
        decode.accept(piece_of(decode, layer))
    return decode


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


def test_a_transfer_id_is_good_for_one_reservation() -> None:
    decode = reserved()
    with pytest.raises(ValueError, match="was reserved before"):
        decode.reserve(SENDER)

    decode.receiver.abort(TRANSFER, AbortReason.CANCELLED)

    with pytest.raises(ValueError, match="was reserved before"):
        decode.reserve(SENDER)
    assert decode.audit().free == decode.pool.num_blocks


def test_a_lease_that_is_given_up_at_the_moment_of_its_seal_says_so() -> None:
    decode = filled()
    decode.receiver.filling(TRANSFER).happen(ReceiverEvent.ABORT)  # by the owner's thread

    with pytest.raises(TransferAborted, match="given up by the receiver"):
        decode.receiver.seal(TRANSFER)


def test_a_lease_that_is_over_takes_no_pieces_and_is_not_sealed_or_adopted() -> None:
    decode = filled()
    decode.receiver.abort(TRANSFER, AbortReason.CANCELLED)

    for act in (
        lambda: decode.accept(piece_of(decode, 0)),
        lambda: decode.receiver.seal(TRANSFER),
        lambda: decode.receiver.adopt(TRANSFER),
    ):
        with pytest.raises(TransferAborted, match="cancelled"):
            act()
    assert decode.audit().free == decode.pool.num_blocks


def test_a_sealed_lease_takes_no_more_pieces() -> None:
    decode = filled()
    decode.receiver.seal(TRANSFER)

    with pytest.raises(UnknownTransfer, match="sealed"):
        decode.accept(piece_of(decode, 0))


def test_an_incomplete_lease_is_not_sealed() -> None:
    decode = reserved()
    decode.accept(piece_of(decode, 0))

    with pytest.raises(TransferError, match="lacks 6"):
        decode.receiver.seal(TRANSFER)


def test_an_abort_after_the_adoption_leaves_the_request_its_blocks() -> None:
    decode = filled()
    decode.receiver.seal(TRANSFER)
    decode.adopt()

    decode.receiver.abort(TRANSFER, AbortReason.EXPIRED)

    assert decode.holds_kv()
    assert decode.audit().live == NUM_BLOCKS


def test_a_piece_that_comes_after_the_time_is_up_ends_the_lease() -> None:
    decode, heard = reserved(), list[tuple[TransferId, str]]()
    decode.receiver.on_aborted.append(lambda *event: heard.append(event))
    decode.clock.now = TIME_LEFT_S

    with pytest.raises(TransferAborted, match="its time is up"):
        decode.accept(piece_of(decode, 0))
    decode.receiver.expire(decode.clock())

    assert heard == [(TRANSFER, AbortReason.EXPIRED)]
    assert decode.audit().leased == 0


def test_leases_leave_most_of_the_pool_to_running_requests() -> None:
    decode = reserved(ReceiverConfig(max_leased_fraction=0.3))

    refused = decode.reserve(SENDER, TransferId("kv-2"))

    assert refused is None
    assert decode.receiver.counters.num_refused == 1
    assert decode.audit().leased == NUM_BLOCKS


def test_a_lease_may_take_all_that_leases_may_hold() -> None:
    exact = ReceiverConfig(max_leased_fraction=NUM_BLOCKS / 16)
    decode = DecodeReplica(num_blocks=16, config=exact)

    assert decode.reserve(SENDER) is not None
    assert decode.reserve(SENDER, TransferId("kv-2"), PROMPT[:1]) is None


def test_a_full_pool_refuses_and_changes_nothing() -> None:
    decode = DecodeReplica(num_blocks=NUM_BLOCKS + 2, config=ReceiverConfig(max_leased_fraction=1))
    assert decode.reserve(SENDER, TransferId("kv-0"), tuple(range(12))) is not None

    assert decode.reserve(SENDER) is None
    assert decode.audit().leased == 3


def test_blocks_come_back_for_a_lease_only_as_long_as_it_is_they_that_are_missing() -> None:
    every = ReceiverConfig(max_leased_fraction=1)
    decode = DecodeReplica(num_blocks=NUM_BLOCKS + 4, config=every)
    lent = [Holder(HolderKind.LEASE, f"lent-{number}") for number in range(4)]
    for lease in lent:
        assert decode.pool.reserve(lease, (1,), b"") is not None

    def call_back() -> bool:
        if lent:
            decode.pool.release(lent.pop())
        return bool(lent)

    assert decode.reserve(SENDER, prompt=tuple(range(4 * NUM_BLOCKS + 8)), reclaim=call_back)
    assert len(lent) == 2 and decode.receiver.counters.num_refused == 0
    assert decode.reserve(SENDER, TransferId("kv-2"), tuple(range(12)), call_back) is None
    assert len(lent) == 2 and decode.receiver.counters.num_refused == 1


def test_blocks_that_cannot_be_made_ready_are_the_pools_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decode = DecodeReplica()

    def fail(holder: Holder, start: int) -> Targets:
        raise MemoryError("none left on the device")

    monkeypatch.setattr(decode.pool, "targets", fail)
    with pytest.raises(MemoryError):
        decode.reserve(SENDER)
    monkeypatch.undo()

    assert decode.pool.num_in_use == 0
    assert decode.reserve(SENDER) is not None


def test_pressure_takes_the_youngest_lease_that_nothing_has_arrived_for() -> None:
    decode = reserved()
    other, third = TransferId("kv-2"), TransferId("kv-3")
    assert decode.reserve(SENDER, other, PROMPT[:8]) is not None
    assert decode.reserve(SENDER, third, PROMPT[:9]) is not None
    data = kv_of(PROMPT[:9], 0, 0)
    piece = resealed(replace(piece_of(decode, 0), transfer_id=third), data)
    decode.accept(piece)

    assert decode.receiver.abort_youngest_reserved()
    assert decode.receiver.lease_ids == {TRANSFER, third}
    assert decode.receiver.abort_youngest_reserved()
    assert not decode.receiver.abort_youngest_reserved()

    assert decode.receiver.lease_ids == {third}
    assert decode.receiver.counters.num_aborted == {AbortReason.PRESSURE: 2}


def test_a_share_of_the_pool_that_is_no_share_is_refused() -> None:
    with pytest.raises(ValueError, match="max_leased_fraction"):
        ReceiverConfig(max_leased_fraction=0.0)


def test_only_time_in_which_it_was_looked_at_counts_for_a_write_to_blocks_that_were_given_up() -> (
    None
):
    decode = reserved()
    filling = decode.receiver.filling(TRANSFER)
    fill = filling.begin(0, piece_of(decode, 0), decode.clock())
    decode.receiver.expire(decode.clock())
    decode.receiver.abort(TRANSFER, AbortReason.CANCELLED)

    decode.clock.advance(0.5)
    decode.receiver.expire(decode.clock())
    assert decode.receiver.longest_quarantine_s == 0.5
    decode.clock.advance(3600.0)  # this process was stopped
    decode.receiver.expire(decode.clock())
    assert decode.receiver.longest_quarantine_s == 1.5

    filling.end(fill, is_written=False)
    decode.receiver.expire(decode.clock())
    assert decode.receiver.longest_quarantine_s == 0.0
    assert decode.audit().free == decode.pool.num_blocks
