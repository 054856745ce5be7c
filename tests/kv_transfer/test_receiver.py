from __future__ import annotations

from collections.abc import Iterator
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

from baton.core.errors import (
    CorruptPiece,
    StaleEpoch,
    TransferAborted,
    TransferError,
    UnknownTransfer,
)
from baton.core.ids import Epoch, TransferId, new_epoch
from baton.kv_transfer.integrity import unit_checksums
from baton.kv_transfer.lease import ReceiverState
from baton.kv_transfer.messages import KvPiece
from baton.kv_transfer.receiver import AbortReason, Accepted, ReceiverConfig

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
    data = b"".join(kv_of(PROMPT, block, layer) for block in range(first_block, stop))
    return KvPiece(
        transfer_id=TRANSFER,
        sender_epoch=sender,
        receiver_epoch=decode.receiver.epoch,
        layer=layer,
        first_block=first_block,
        data=data,
        checksums=unit_checksums(data, LAYOUT.unit_bytes),
    )


def resealed(piece: KvPiece, data: bytes) -> KvPiece:
    """Other bytes, with checksums that match them."""
    return replace(piece, data=data, checksums=unit_checksums(data, LAYOUT.unit_bytes))


def filled() -> DecodeReplica:
    decode = reserved()
    for layer in range(LAYOUT.num_layers):
        decode.receiver.accept(piece_of(decode, layer), now=0.0)
    return decode


def test_pieces_may_come_in_any_order_and_overlap() -> None:
    decode = reserved()
    accept = decode.receiver.accept

    assert accept(piece_of(decode, 1, 2, 5), 0.0) == Accepted(3, 0)
    assert accept(piece_of(decode, 0), 0.0) == Accepted(6, 0)
    assert decode.receiver.first_missing(TRANSFER) == 0
    assert accept(piece_of(decode, 1, 0, 4), 0.0) == Accepted(2, 2)
    assert decode.receiver.first_missing(TRANSFER) == 5
    assert not decode.receiver.is_complete(TRANSFER)
    assert accept(piece_of(decode, 1, 5, 6), 0.0) == Accepted(1, 0)

    assert decode.receiver.is_complete(TRANSFER)
    decode.receiver.seal(TRANSFER)
    decode.receiver.seal(TRANSFER)
    decode.adopt()
    assert decode.holds_kv()
    assert decode.receiver.counters.num_bytes == NUM_BLOCKS * LAYOUT.block_bytes


def test_a_filled_block_is_never_replaced_by_other_bytes() -> None:
    decode = filled()
    piece = piece_of(decode, 0, 0, 2)
    other = resealed(piece, bytes(piece.data)[:-1] + b"\xff")

    with pytest.raises(CorruptPiece, match="block 1 has arrived before, with other bytes"):
        decode.receiver.accept(other, 0.0)

    decode.receiver.seal(TRANSFER)
    decode.adopt()
    assert decode.holds_kv()


def malformed() -> Iterator[tuple[str, KvPiece]]:
    decode = DecodeReplica()
    good = piece_of(decode, 0)
    size = LAYOUT.layer_block_bytes
    yield "short", replace(good, data=bytes(good.data)[:-1])
    yield "empty", replace(good, data=b"", checksums=())
    yield "checksum missing", replace(good, checksums=good.checksums[1:])
    yield "beyond the prompt", replace(good, first_block=1)
    yield "before the prompt", replace(good, first_block=-1)
    yield "too many blocks", resealed(good, bytes(good.data) + bytes(size))
    yield "no such layer", replace(good, layer=LAYOUT.num_layers)
    yield "negative layer", replace(good, layer=-1)


@pytest.mark.parametrize("piece", [pytest.param(p, id=name) for name, p in malformed()])
def test_a_malformed_piece_writes_nothing_and_counts_against_its_source(piece: KvPiece) -> None:
    decode = reserved()

    with pytest.raises(CorruptPiece):
        decode.receiver.accept(replace(piece, receiver_epoch=decode.receiver.epoch), 0.0)

    assert decode.receiver.counters.num_bytes == 0
    assert decode.receiver.counters.num_corrupt == {SENDER: 1}
    assert decode.receiver.state(TRANSFER) is ReceiverState.RESERVED


def test_pieces_of_other_incarnations_are_refused() -> None:
    decode = reserved()
    from_another = piece_of(decode, 0, sender=new_epoch())
    for_another = replace(piece_of(decode, 0), receiver_epoch=new_epoch())

    for stale in (from_another, for_another):
        with pytest.raises(StaleEpoch):
            decode.receiver.accept(stale, 0.0)

    assert decode.receiver.counters.num_bytes == 0


def test_a_lease_that_is_over_takes_no_pieces_and_is_not_sealed_or_adopted() -> None:
    decode = filled()
    decode.receiver.abort(TRANSFER, AbortReason.CANCELLED)

    for act in (
        lambda: decode.receiver.accept(piece_of(decode, 0), 0.0),
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
        decode.receiver.accept(piece_of(decode, 0), 0.0)


def test_an_incomplete_lease_is_not_sealed() -> None:
    decode = reserved()
    decode.receiver.accept(piece_of(decode, 0), 0.0)

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

    with pytest.raises(TransferAborted, match="its time is up"):
        decode.receiver.accept(piece_of(decode, 0), now=TIME_LEFT_S)

    assert heard == [(TRANSFER, AbortReason.EXPIRED)]
    assert decode.audit().leased == 0


def test_leases_leave_most_of_the_pool_to_running_requests() -> None:
    decode = reserved(ReceiverConfig(max_leased_fraction=0.3))

    refused = decode.reserve(SENDER, TransferId("kv-2"))

    assert refused is None
    assert decode.receiver.counters.num_refused == 1
    assert decode.audit().leased == NUM_BLOCKS


def test_a_full_pool_refuses_and_changes_nothing() -> None:
    decode = DecodeReplica(num_blocks=NUM_BLOCKS + 2, config=ReceiverConfig(max_leased_fraction=1))
    assert decode.reserve(SENDER, TransferId("kv-0"), tuple(range(12))) is not None

    assert decode.reserve(SENDER) is None
    assert decode.audit().leased == 3


def test_pressure_takes_the_youngest_lease_that_nothing_has_arrived_for() -> None:
    decode = reserved()
    other, third = TransferId("kv-2"), TransferId("kv-3")
    assert decode.reserve(SENDER, other, PROMPT[:8]) is not None
    assert decode.reserve(SENDER, third, PROMPT[:9]) is not None
    data = kv_of(PROMPT[:9], 0, 0)
    piece = resealed(replace(piece_of(decode, 0), transfer_id=third), data)
    decode.receiver.accept(piece, 0.0)

    assert decode.receiver.abort_youngest_reserved()
    assert decode.receiver.lease_ids == {TRANSFER, third}
    assert decode.receiver.abort_youngest_reserved()
    assert not decode.receiver.abort_youngest_reserved()

    assert decode.receiver.lease_ids == {third}
    assert decode.receiver.counters.num_aborted == {AbortReason.PRESSURE: 2}


def test_a_share_of_the_pool_that_is_no_share_is_refused() -> None:
    with pytest.raises(ValueError, match="max_leased_fraction"):
        ReceiverConfig(max_leased_fraction=0.0)
