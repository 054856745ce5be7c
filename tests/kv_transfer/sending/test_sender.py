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
    kv_of,
    opening,
    request_holder,
    settling,
)

from baton.core.errors import (
    Overloaded,
    StaleEpoch,
    TransferAborted,
    TransferError,
    UnknownTransfer,
)
from baton.core.ids import TransferId, new_epoch
from baton.core.kv_pool import Holder, HolderKind
from baton.kv_transfer.handoff.lease import Computation
from baton.kv_transfer.handoff.messages import Outcome
from baton.kv_transfer.sending.pieces import BlockRead
from baton.kv_transfer.sending.sender import SenderConfig
from baton.kv_transfer.sending.stream import SendingStream

DECODE = DecodeReplica()
LEASE = Holder(HolderKind.LEASE, TRANSFER)
QUARANTINE = Holder(HolderKind.QUARANTINE, TRANSFER)


def granted(config: SenderConfig | None = None) -> PrefillReplica:
    prefill = PrefillReplica(config=config)
    assert prefill.grant(DECODE.receiver.epoch)
    return prefill


def opened(prefill: PrefillReplica, first_block: int = 0) -> SendingStream:
    return prefill.sender.open(replace(opening(prefill, DECODE), first_block=first_block))


def span_of(reading: BlockRead) -> tuple[int, int, int]:
    return reading.plane, reading.first_block, reading.first_block + len(reading.blocks)


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


def withheld(prefill: PrefillReplica) -> list[str]:
    """Compute all of it, to be shown later, and let its request end. Who waits is told here."""
    told: list[str] = []
    prefill.sender.when_changed(TRANSFER, lambda: told.append("changed"))
    prefill.sender.publish = prefill.sender.withhold  # type: ignore[method-assign]
    prefill.compute()
    prefill.finish()
    return told


def test_what_is_withheld_outlives_its_request_and_is_read_when_it_is_shown() -> None:
    prefill = granted()
    stream, told = opened(prefill), withheld(prefill)
    assert prefill.sender.begin_read(stream) == []
    assert (told, prefill.audit().leased) == ([], 6)

    prefill.sender.show(TRANSFER)
    prefill.sender.show(TRANSFER)  # nothing new

    spans = [span_of(reading) for reading in prefill.sender.begin_read(stream)]
    assert (told, spans) == (["changed"], [(0, 0, 6), (1, 0, 6)])
    assert prefill.audit().violations == ()


def test_what_is_withheld_is_never_shown_of_a_transfer_that_was_given_up() -> None:
    prefill = granted()
    stream, told = opened(prefill), withheld(prefill)

    prefill.sender.abort(TRANSFER, "its outputs were not finite")
    prefill.sender.show(TRANSFER)

    with pytest.raises(TransferAborted, match="not finite"):
        prefill.sender.begin_read(stream)
    assert (told, prefill.audit().leased) == (["changed"], 0)
    assert prefill.audit().violations == ()


def test_a_read_sees_what_lies_beyond_its_cursor_and_no_more_than_its_share() -> None:
    prefill = granted(SenderConfig(max_blocks_per_read=3))
    prefill.compute(num_tokens=20)
    stream = opened(prefill, first_block=1)

    spans = [[span_of(reading) for reading in prefill.sender.begin_read(stream)] for _ in range(4)]

    assert spans == [[(0, 1, 4)], [(1, 1, 4)], [(0, 4, 5), (1, 4, 5)], []]


def test_a_layer_may_be_read_while_later_ones_of_the_same_blocks_are_computed() -> None:
    prefill = granted()
    stream, seen = opened(prefill), []

    def look(layer: int) -> None:
        for reading in prefill.sender.begin_read(stream):
            seen.append(span_of(reading))
            expected = [kv_of(PROMPT, block, layer) for block in range(3)]
            assert [bytes(view) for view in reading.source.views(range(1), 0, 3)] == expected

    prefill.compute(num_tokens=14, on_layer=look)

    assert seen == [(0, 0, 3), (1, 0, 3)]
    assert num_leased(prefill) == 3


def test_a_prompt_that_stops_between_two_layers_is_aborted() -> None:
    prefill = granted()
    prefill.compute(num_tokens=16)
    prefill.sender.publish(TRANSFER, len(PROMPT), [0])

    prefill.finish()

    assert prefill.sender.settle(settling(prefill, DECODE, None)) is Outcome.ABORTED
    assert prefill.audit().leased == 0


def test_an_ack_during_a_read_moves_the_blocks_to_quarantine_until_the_last_read_ends() -> None:
    prefill = granted()
    prefill.compute()
    prefill.finish()
    streams = [opened(prefill), opened(prefill, first_block=2)]
    readings = [reading for s in streams for reading in prefill.sender.begin_read(s)]

    prefill.sender.settle(settling(prefill, DECODE, Outcome.SEALED))

    assert (prefill.audit().leased, prefill.audit().quarantined) == (0, 6)
    for reading in readings:
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


def test_the_first_reason_stands_while_blocks_of_a_transfer_that_was_given_up_are_read() -> None:
    prefill = granted()
    prefill.compute()
    stream = opened(prefill)
    readings = prefill.sender.begin_read(stream)
    prefill.sender.abort(TRANSFER, "the client went away")

    prefill.sender.settle(settling(prefill, DECODE, Outcome.ABORTED))

    with pytest.raises(TransferAborted, match="the client went away"):
        prefill.sender.begin_read(stream)
    for reading in readings:
        prefill.sender.end_read(reading)
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


def test_handoffs_hold_a_share_of_the_pool_until_their_last_read_has_ended() -> None:
    config = SenderConfig(max_held_fraction=0.25)  # of 32 blocks
    prefill, first, second = granted(config), TRANSFER, TransferId("kv-2")
    assert prefill.grant(DECODE.receiver.epoch, second)
    prefill.sender.take(first, 6, "a")
    prefill.sender.take(first, 6)  # resumed after a preemption: it has them already
    prefill.sender.held.check(32)  # what is being computed does not count
    prefill.compute()
    prefill.finish()
    with pytest.raises(Overloaded, match=r"6 blocks held \+ 3 asked for > 8 .*max_held_fraction"):
        prefill.sender.take(second, 3)
    assert set(prefill.sender.held.tenants) == {"a"}
    readings = prefill.sender.begin_read(opened(prefill))

    prefill.sender.settle(settling(prefill, DECODE, Outcome.SEALED))
    with pytest.raises(Overloaded):
        prefill.sender.take(second, 3)
    for reading in readings:
        prefill.sender.end_read(reading)

    prefill.sender.take(second, 9)  # more than its share, but nobody else holds any
    prefill.compute(second)
    prefill.finish(second)
    assert prefill.sender.held.num_blocks == 9
    assert set(prefill.sender.held.tenants) == {""}
    prefill.sender.abort(second, "cancelled")
    assert prefill.sender.held.num_blocks == 0
    assert not prefill.sender.held.tenants


@pytest.mark.parametrize(("asked_s", "kept_s"), [(1.8e16, 60.0), (-5.0, 0.0)])
def test_no_peer_has_blocks_kept_longer_than_this_replica_allows(
    asked_s: float, kept_s: float
) -> None:
    prefill = PrefillReplica(config=SenderConfig(max_time_left_s=60.0))
    lease = Holder(HolderKind.LEASE, TRANSFER)
    prefill.sender.offer(
        TRANSFER, new_epoch(), source=lease, num_tokens=8, time_left_s=asked_s, now=100.0
    )

    assert prefill.sender.expire(100.0 + kept_s - 0.1) == []
    assert prefill.sender.expire(100.0 + kept_s) == [TRANSFER]


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
        prefill.sender.open(opening(prefill, DECODE))


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

    def look_again() -> None:
        announced.append(TRANSFER)
        prefill.sender.when_changed(TRANSFER, look_again)

    prefill.sender.when_changed(TRANSFER, look_again)
    prefill.compute(num_tokens=LAYOUT.block_size - 1)
    assert announced == []
    prefill.compute(num_tokens=LAYOUT.block_size)
    assert announced == [TRANSFER] * LAYOUT.num_layers
    prefill.sender.publish(TRANSFER, LAYOUT.block_size)
    assert announced == [TRANSFER] * LAYOUT.num_layers
    prefill.sender.abort(TRANSFER, "cancelled")

    assert announced == [TRANSFER] * (LAYOUT.num_layers + 1)


def test_the_end_of_a_transfer_is_announced_once() -> None:
    prefill, ended = granted(), list[TransferId]()
    prefill.on_ended = ended.append
    prefill.compute()
    readings = prefill.sender.begin_read(opened(prefill))
    assert ended == []

    prefill.sender.settle(settling(prefill, DECODE, Outcome.SEALED))
    prefill.sender.abort(TRANSFER, "too late")
    for reading in readings:
        prefill.sender.end_read(reading)

    assert ended == [TRANSFER]


def test_what_is_published_while_a_last_read_ends_is_not_held() -> None:
    prefill = granted()
    prefill.compute(num_tokens=4)
    stream = opened(prefill)
    readings = prefill.sender.begin_read(stream)
    prefill.sender.abort(TRANSFER, "cancelled")

    prefill.compute(num_tokens=12)

    assert num_leased(prefill) == 0
    for reading in readings:
        prefill.sender.end_read(reading)
    assert prefill.audit().violations == ()


def test_a_reading_that_is_ended_twice_counts_once() -> None:
    prefill = granted()
    prefill.compute()
    first, *others = prefill.sender.begin_read(opened(prefill))
    prefill.sender.abort(TRANSFER, "cancelled")

    prefill.sender.end_read(first)
    prefill.sender.end_read(first)

    assert prefill.pool.table(QUARANTINE)  # for the other readings
    for reading in others:
        prefill.sender.end_read(reading)
    assert not prefill.pool.table(QUARANTINE)


def test_what_became_of_a_transfer_is_told_to_its_receiver_alone() -> None:
    prefill = granted()
    prefill.sender.abort(TRANSFER, "cancelled")
    stranger = replace(settling(prefill, DECODE, None), receiver_epoch=new_epoch())

    with pytest.raises(StaleEpoch):
        prefill.sender.settle(stranger)
