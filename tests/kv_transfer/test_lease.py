from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.kv_transfer.lease import (
    ReceiverEvent,
    ReceiverState,
    SenderEvent,
    SenderState,
    Transfer,
    next_receiver_state,
    next_sender_state,
)


def receiver_after(*events: ReceiverEvent) -> ReceiverState:
    state = ReceiverState.RESERVED
    for event in events:
        state = next_receiver_state(state, event)
    return state


def sender_after(*events: SenderEvent) -> SenderState:
    state = SenderState()
    for event in events:
        state = next_sender_state(state, event)
    return state


def test_a_handoff_goes_from_reserved_to_adopted() -> None:
    fill, seal, adopt = ReceiverEvent.FILL, ReceiverEvent.SEAL, ReceiverEvent.ADOPT

    assert receiver_after(fill, fill, seal, seal, adopt) is ReceiverState.ADOPTED


@pytest.mark.parametrize("state", ReceiverState)
def test_every_lease_can_be_aborted_except_one_that_is_no_longer_ours(state: ReceiverState) -> None:
    aborted = next_receiver_state(state, ReceiverEvent.ABORT)

    assert aborted is (state if state is ReceiverState.ADOPTED else ReceiverState.ABORTED)


def test_a_lease_is_never_filled_after_its_seal_nor_adopted_without_it() -> None:
    allowed = {
        (state, event)
        for state, event in product(ReceiverState, (ReceiverEvent.FILL, ReceiverEvent.ADOPT))
        if is_possible(state, event)
    }

    assert allowed == {
        (ReceiverState.RESERVED, ReceiverEvent.FILL),
        (ReceiverState.FILLING, ReceiverEvent.FILL),
        (ReceiverState.SEALED, ReceiverEvent.ADOPT),
    }


def is_possible(state: ReceiverState, event: ReceiverEvent) -> bool:
    try:
        next_receiver_state(state, event)
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
