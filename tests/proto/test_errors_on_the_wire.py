"""Errors, and what a newer peer says, as the other process hears them."""

from __future__ import annotations

import pytest

from baton.core.errors import (
    BatonError,
    Cancelled,
    ContextExceeded,
    CorruptPiece,
    DeadlineExceeded,
    EngineFailed,
    InvalidRequest,
    Overloaded,
    Unavailable,
)
from baton.core.ids import RequestId
from baton.core.messages import TokenUpdate
from baton.proto import generate_wire, token_update_wire
from baton.proto import replica_pb2 as pb
from baton.proto.sampling_wire import grammar_from_proto


def sent(error: Exception) -> pb.Error:
    return pb.Error.FromString(token_update_wire.error_to_proto(error).SerializeToString())


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequest("no such field"),
        Overloaded("full"),
        Unavailable("gone"),
        DeadlineExceeded("late"),
        Cancelled("taken back"),
    ],
)
def test_an_error_arrives_as_what_it_was_and_ends_the_request(error: BatonError) -> None:
    update = TokenUpdate(request_id=RequestId("r"), attempt=1, error=error)

    message = token_update_wire.update_to_proto(update).SerializeToString()
    arrived = token_update_wire.update_from_proto(pb.TokenUpdate.FromString(message))

    assert type(arrived.error) is type(error)
    assert str(arrived.error) == str(error)
    assert arrived.is_last


def test_a_special_mistake_of_the_caller_is_still_the_callers_mistake() -> None:
    arrived = token_update_wire.error_from_proto(sent(ContextExceeded("too long")))

    assert type(arrived) is InvalidRequest
    assert str(arrived) == "too long"


@pytest.mark.parametrize("error", [EngineFailed("x"), CorruptPiece("x"), RuntimeError("x")])
def test_a_fault_on_our_side_may_be_tried_elsewhere(error: Exception) -> None:
    arrived = token_update_wire.error_from_proto(sent(error))

    assert type(arrived) is Unavailable
    assert str(arrived) == f"{type(error).__name__}: x"


def test_an_error_of_a_newer_peer_may_be_tried_elsewhere() -> None:
    message = pb.Error.FromString(b"\x08\x63\x12\x03new")  # code 99

    assert type(token_update_wire.error_from_proto(message)) is Unavailable


def test_a_finish_reason_of_a_newer_peer_is_none_we_know() -> None:
    message = pb.TokenUpdate.FromString(b"\x28\x63")  # finish_reason 99

    assert token_update_wire.update_from_proto(message).finish_reason is None


def test_a_grammar_or_a_pooling_of_a_newer_peer_cannot_be_left_out() -> None:
    grammar = pb.Grammar.FromString(b"\x08\x63")  # kind 99
    pooled = pb.GenerateRequest.FromString(b"\x50\x63")  # pooling 99

    with pytest.raises(InvalidRequest):
        grammar_from_proto(grammar)
    with pytest.raises(InvalidRequest):
        generate_wire.generate_from_proto(pooled)
