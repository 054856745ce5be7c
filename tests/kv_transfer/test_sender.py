from __future__ import annotations

from dataclasses import replace

import pytest
from tests.kv_transfer.replicas import (
    LAYOUT,
    PROMPT,
    TIME_LEFT_S,
    TRANSFER,
    DecodeReplica,
    PrefillReplica,
    opening,
    request_holder,
    settling,
)

from baton.core.errors import StaleEpoch, TransferAborted, TransferError, UnknownTransfer
from baton.core.ids import TransferId, new_epoch
from baton.core.kv_pool import Holder, HolderKind
from baton.kv_transfer.lease import Computation
from baton.kv_transfer.messages import Outcome
from baton.kv_transfer.sender import SenderConfig

DECODE = DecodeReplica()
LEASE = Holder(HolderKind.LEASE, TRANSFER)
QUARANTINE = Holder(HolderKind.QUARANTINE, TRANSFER)


def granted(config: SenderConfig | None = None) -> PrefillReplica:
    prefill = PrefillReplica(config=config)
    assert prefill.grant(DECODE.receiver.epoch)
    return prefill


def num_leased(prefill: PrefillReplica) -> int:
    return len(prefill.pool.table(LEASE))


def test_full_blocks_are_published_as_they_are_computed_and_the_tail_with_the_last_token() -> None:
    prefill = granted()

    leased = []
    for num_tokens in (3, 4, 11, 21, 22):
        prefill.compute(num_tokens=num_tokens)
        leased.append(num_leased(prefill))

    assert leased == [0, 1, 2, 5, 6]


def test_a_preempted_source_takes_nothing_back() -> None:
    prefill = granted()
    prefill.compute(num_tokens=16)
    first = list(prefill.pool.table(LEASE))
    prefill.preempt(TRANSFER)
    assert prefill.resume(TRANSFER)

    prefill.compute(num_tokens=8)
    assert list(prefill.pool.table(LEASE)) == first
    prefill.compute()

    assert list(prefill.pool.table(LEASE))[:4] == first
    assert num_leased(prefill) == 6
    assert prefill.audit().violations == ()


def test_blocks_outlive_the_request_that_computed_them_until_the_ack() -> None:
    prefill = granted()
    prefill.compute()
    prefill.finish()
    assert prefill.audit().leased == 6
    assert prefill.sender.computation(TRANSFER) is Computation.DONE

    prefill.sender.settle(settling(prefill, DECODE, Outcome.SEALED))

    assert prefill.audit().leased == 0
    assert prefill.sender.lease_ids == frozenset()


def test_a_read_sees_what_lies_beyond_its_cursor_and_no_more_than_its_share() -> None:
    prefill = granted(SenderConfig(max_blocks_per_read=3))
    prefill.compute(num_tokens=20)
    begin = prefill.sender.begin_read

    spans = [
        (reading.first_block, reading.stop)
        for cursor in (0, 1, 3)
        if (reading := begin(TRANSFER, cursor)) is not None
    ]

    assert spans == [(0, 3), (1, 4), (3, 5)]
    assert begin(TRANSFER, 5) is None


def test_an_ack_during_a_read_moves_the_blocks_to_quarantine_until_the_last_read_ends() -> None:
    prefill = granted()
    prefill.compute()
    prefill.finish()
    readings = [prefill.sender.begin_read(TRANSFER, 0), prefill.sender.begin_read(TRANSFER, 2)]

    prefill.sender.settle(settling(prefill, DECODE, Outcome.SEALED))

    assert (prefill.audit().leased, prefill.audit().quarantined) == (0, 6)
    for reading in readings:
        assert reading is not None
        assert prefill.audit().quarantined == 6
        prefill.sender.end_read(reading)
    assert prefill.audit().quarantined == 0
    assert prefill.sender.settle(settling(prefill, DECODE, None)) is Outcome.SEALED


def test_a_transfer_that_is_over_ignores_what_the_engine_still_reports() -> None:
    prefill = granted()
    prefill.compute(num_tokens=8)
    prefill.sender.abort(TRANSFER, "cancelled")

    prefill.compute()
    prefill.finish()

    assert prefill.audit().leased == 0
    assert prefill.audit().violations == ()


def test_a_late_reader_hears_why_the_transfer_was_given_up() -> None:
    prefill = granted()
    prefill.sender.abort(TRANSFER, "the client went away")

    with pytest.raises(TransferAborted, match="the client went away"):
        prefill.sender.open(opening(prefill, DECODE))


def test_what_is_past_its_time_expires_and_the_rest_does_not() -> None:
    prefill = granted()
    late = TransferId("kv-late")
    assert prefill.grant(DECODE.receiver.epoch, late, PROMPT, now=1.0)

    assert prefill.sender.expire(TIME_LEFT_S - 0.1) == []
    assert prefill.sender.expire(TIME_LEFT_S) == [TRANSFER]

    assert prefill.sender.lease_ids == {late}
    assert prefill.sender.counters.num_expired == 1
    assert prefill.sender.settle(settling(prefill, DECODE, None)) is Outcome.ABORTED


def test_the_first_outcome_is_remembered_when_a_later_one_contradicts_it() -> None:
    prefill = granted()
    first = prefill.sender.settle(settling(prefill, DECODE, Outcome.ABORTED))

    second = prefill.sender.settle(settling(prefill, DECODE, Outcome.SEALED))

    assert first is second is Outcome.ABORTED


def test_outcomes_are_forgotten_one_day_and_then_unknown() -> None:
    prefill = granted(SenderConfig(max_remembered=2))
    prefill.sender.abort(TRANSFER, "cancelled")
    for name in ("kv-2", "kv-3"):
        transfer_id = TransferId(name)
        prefill.grant(DECODE.receiver.epoch, transfer_id)
        prefill.sender.abort(transfer_id, "cancelled")

    assert prefill.sender.settle(settling(prefill, DECODE, None)) is Outcome.UNKNOWN
    with pytest.raises(UnknownTransfer):
        prefill.sender.begin_read(TRANSFER, 0)


def test_a_transfer_id_is_good_for_one_offer() -> None:
    prefill = granted()
    prefill.finish()

    with pytest.raises(TransferError, match="offered before"):
        prefill.grant(DECODE.receiver.epoch)

    prefill.pool.release(request_holder(TRANSFER))
    del prefill.requests[TRANSFER]
    assert prefill.audit().violations == ()


def test_an_outcome_for_an_earlier_incarnation_settles_nothing() -> None:
    prefill = granted()
    stale = replace(settling(prefill, DECODE, Outcome.ABORTED), sender_epoch=new_epoch())

    with pytest.raises(StaleEpoch):
        prefill.sender.settle(stale)

    assert prefill.sender.lease_ids == {TRANSFER}


def test_every_change_that_a_stream_may_wait_for_is_announced() -> None:
    prefill, announced = granted(), list[TransferId]()
    prefill.sender.on_changed = announced.append

    prefill.compute(num_tokens=LAYOUT.block_size - 1)
    assert announced == []
    prefill.compute(num_tokens=LAYOUT.block_size)
    assert announced == [TRANSFER]
    prefill.sender.abort(TRANSFER, "cancelled")

    assert announced == [TRANSFER, TRANSFER]


def test_the_end_of_a_transfer_is_announced_once() -> None:
    prefill, ended = granted(), list[TransferId]()
    prefill.sender.on_ended = ended.append
    prefill.compute()
    reading = prefill.sender.begin_read(TRANSFER, 0)
    assert ended == []

    prefill.sender.settle(settling(prefill, DECODE, Outcome.SEALED))
    prefill.sender.abort(TRANSFER, "too late")
    assert reading is not None
    prefill.sender.end_read(reading)

    assert ended == [TRANSFER]
