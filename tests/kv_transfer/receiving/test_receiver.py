"""The leases of a receiver, from their reservation to their end."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.kv_transfer.receiving.pieces import (
    NUM_BLOCKS,
    SENDER,
    filled,
    piece_of,
    resealed,
    reserved,
)
from tests.kv_transfer.replicas import (
    PROMPT,
    TIME_LEFT_S,
    TRANSFER,
    DecodeReplica,
    kv_of,
)

from baton.core.errors import (
    TransferAborted,
    TransferError,
    UnknownTransfer,
)
from baton.core.ids import TransferId
from baton.core.kv_pool import Holder, HolderKind
from baton.engine.blocks.block_bytes import Targets
from baton.kv_transfer.handoff.lease import ReceiverEvent
from baton.kv_transfer.receiving.receiver import AbortReason, ReceiverConfig


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
