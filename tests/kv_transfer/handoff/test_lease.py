from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.kv_transfer.handoff.lease import (
    ReceiverEvent,
    ReceiverLease,
    ReceiverState,
    SenderEvent,
    SenderState,
    Transfer,
    next_receiver_lease,
    next_sender_state,
)


def receiver_after(*events: ReceiverEvent) -> ReceiverLease:
    lease = ReceiverLease()
    for event in events:
        lease = next_receiver_lease(lease, event)
    return lease


def sender_after(*events: SenderEvent) -> SenderState:
    state = SenderState()
    for event in events:
        state = next_sender_state(state, event)
    return state


BEGUN, ENDED = ReceiverEvent.FILL_BEGUN, ReceiverEvent.FILL_ENDED
SEAL, ADOPT, ABORT = ReceiverEvent.SEAL, ReceiverEvent.ADOPT, ReceiverEvent.ABORT


def test_a_handoff_goes_from_reserved_to_adopted() -> None:
    lease = receiver_after(BEGUN, BEGUN, ENDED, ENDED, SEAL, SEAL, ADOPT)

    assert lease == ReceiverLease(ReceiverState.ADOPTED)


@pytest.mark.parametrize("state", ReceiverState)
def test_every_lease_can_be_aborted_except_one_that_is_no_longer_ours(state: ReceiverState) -> None:
    aborted = next_receiver_lease(ReceiverLease(state), ABORT).state

    assert aborted is (state if state is ReceiverState.ADOPTED else ReceiverState.ABORTED)


def test_a_lease_is_never_filled_after_its_seal_nor_adopted_without_it() -> None:
    allowed = {
        (state, event)
        for state, event in product(ReceiverState, (BEGUN, ADOPT))
        if is_possible(ReceiverLease(state), event)
    }

    assert allowed == {
        (ReceiverState.RESERVED, BEGUN),
        (ReceiverState.FILLING, BEGUN),
        (ReceiverState.SEALED, ADOPT),
    }


def test_nothing_is_sealed_while_something_is_being_written() -> None:
    assert not is_possible(receiver_after(BEGUN, BEGUN, ENDED), SEAL)
    assert is_possible(receiver_after(BEGUN, BEGUN, ENDED, ENDED), SEAL)


def test_a_fill_that_never_began_cannot_end() -> None:
    assert not is_possible(receiver_after(BEGUN, ENDED), ENDED)
    assert not is_possible(receiver_after(ABORT), ENDED)


def test_the_receiver_releases_when_it_has_given_up_and_nothing_is_being_written() -> None:
    assert receiver_after(ABORT).is_released
    assert not receiver_after(BEGUN, ABORT).is_released
    assert receiver_after(BEGUN, ABORT, ENDED).is_released
    assert not receiver_after(BEGUN, ENDED, SEAL, ADOPT, ABORT).is_released


@given(st.lists(st.sampled_from(ReceiverEvent)))
def test_blocks_are_never_given_back_under_a_writer(events: list[ReceiverEvent]) -> None:
    lease, num_begun, num_ended, num_releases = ReceiverLease(), 0, 0, 0
    for event in events:
        try:
            after = next_receiver_lease(lease, event)
        except ValueError:
            continue
        num_begun += event is BEGUN
        num_ended += event is ENDED
        num_releases += after.is_released and not lease.is_released
        assert not (lease.is_released and not after.is_released)
        lease = after

    assert lease.num_fills == num_begun - num_ended >= 0
    assert num_releases == lease.is_released <= (lease.num_fills == 0)


def is_possible(lease: ReceiverLease, event: ReceiverEvent) -> bool:
    try:
        next_receiver_lease(lease, event)
    except ValueError:
        return False
    return True


def test_the_sender_releases_when_it_is_settled_and_nobody_reads() -> None:
    begun, ended = SenderEvent.READ_BEGUN, SenderEvent.READ_ENDED

    assert not sender_after(begun, ended).is_released
    assert not sender_after(begun, SenderEvent.ACK).is_released
    assert sender_after(begun, SenderEvent.ACK, ended).is_released
    assert sender_after(SenderEvent.ABORT).is_released


def test_the_first_outcome_is_final() -> None:
    ack, abort = SenderEvent.ACK, SenderEvent.ABORT

    assert sender_after(ack, abort, abort).transfer is Transfer.ACKED
    assert sender_after(abort, ack, ack).transfer is Transfer.ABORTED


def test_no_read_begins_after_the_outcome() -> None:
    with pytest.raises(ValueError, match="READ_BEGUN cannot happen"):
        sender_after(SenderEvent.ACK, SenderEvent.READ_BEGUN)


def test_a_read_that_never_began_cannot_end() -> None:
    with pytest.raises(ValueError, match="READ_ENDED cannot happen"):
        sender_after(SenderEvent.READ_ENDED)


@given(st.lists(st.sampled_from(SenderEvent)))
def test_references_are_released_at_most_once_whatever_happens(events: list[SenderEvent]) -> None:
    state, num_releases = SenderState(), 0
    for event in events:
        try:
            after = next_sender_state(state, event)
        except ValueError:
            continue
        num_releases += after.is_released and not state.is_released
        assert not (state.is_released and not after.is_released)
        state = after

    assert num_releases == state.is_released
