"""How a stream goes on after failures: a state, responses and errors in, decisions out."""

from __future__ import annotations

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.client.errors import (
    BatonClientError,
    Overloaded,
    ServerFailed,
    StreamNotFound,
    Unavailable,
    from_status,
)
from baton.client.retry import Attempts, RetryPolicy
from baton.client.stream_progress import StreamProgress
from baton.proto import inference_pb2 as pb

POLICY = RetryPolicy(max_attempts=3, first_delay_s=0, max_delay_s=0)


def progress(policy: RetryPolicy = POLICY) -> StreamProgress:
    return StreamProgress(Attempts(policy, 60))


def response(sequence: int, stream_id: str = "s") -> pb.GenerateResponse:
    return pb.GenerateResponse(stream_id=stream_id, sequence=sequence)


def broken(reason: str = "") -> Unavailable:
    return Unavailable("broken", grpc.StatusCode.UNAVAILABLE, reason=reason)


def lost() -> StreamNotFound:
    return StreamNotFound("gone", grpc.StatusCode.NOT_FOUND, reason="STREAM_NOT_FOUND")


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNKNOWN])
def test_a_server_that_was_killed_in_mid_stream_is_worth_coming_back_for(
    code: grpc.StatusCode,
) -> None:
    stream = progress()
    stream.received(response(1))

    stream.delay_s_after(from_status(code, "Stream removed (Socket closed)", ()))
    with pytest.raises(ServerFailed):
        progress().delay_s_after(from_status(grpc.StatusCode.UNKNOWN, "a bug", ()))

    assert stream.resumption() == pb.ResumeRequest(stream_id="s", last_sequence=1)


def test_a_call_that_brought_nothing_is_made_afresh() -> None:
    stream = progress()

    stream.delay_s_after(broken("UNAVAILABLE"))

    assert stream.resumption() is None


def test_a_stream_that_has_begun_is_resumed_after_what_was_received() -> None:
    stream = progress()
    stream.received(response(1))
    stream.received(response(2))

    stream.delay_s_after(broken())

    assert stream.resumption() == pb.ResumeRequest(stream_id="s", last_sequence=2)


def test_only_failures_without_progress_between_them_are_counted() -> None:
    stream = progress()
    for sequence in range(1, 10):
        stream.received(response(sequence))
        stream.delay_s_after(broken())
        stream.delay_s_after(broken())

    with pytest.raises(Unavailable):
        stream.delay_s_after(broken())


@pytest.mark.parametrize(
    "error",
    [
        broken("UNAVAILABLE"),
        Overloaded("memory", grpc.StatusCode.RESOURCE_EXHAUSTED, reason="OVERLOADED"),
        lost(),
    ],
)
def test_what_the_server_says_in_mid_stream_is_the_end(error: BatonClientError) -> None:
    stream = progress()
    stream.received(response(1))

    with pytest.raises(type(error)) as caught:
        stream.delay_s_after(error)

    assert caught.value is error


def test_a_stream_that_cannot_be_resumed_ends_with_its_connection() -> None:
    stream = progress()
    stream.received(response(0, stream_id=""))

    with pytest.raises(Unavailable):
        stream.delay_s_after(broken())


def test_a_lost_stream_is_told_as_the_break_that_lost_it() -> None:
    stream = progress()
    stream.received(response(1))
    first = broken()
    stream.delay_s_after(first)

    with pytest.raises(Unavailable) as caught:
        stream.delay_s_after(lost())

    assert caught.value is first
    assert isinstance(caught.value.__cause__, StreamNotFound)


@given(st.lists(st.booleans(), max_size=40))
def test_what_is_received_is_each_response_once(breaks: list[bool]) -> None:
    """The server answers a call from where it is asked to; the connection breaks at random."""
    stream = progress(RetryPolicy(max_attempts=100, first_delay_s=0, max_delay_s=0))
    received: list[int] = []
    at = 0
    for is_broken in breaks:
        if is_broken:
            stream.delay_s_after(broken())
            resumption = stream.resumption()
            at = 0 if resumption is None else resumption.last_sequence
        else:
            at += 1
            stream.received(response(at))
            received.append(at)

    assert received == list(range(1, len(received) + 1))
