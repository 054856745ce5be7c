"""Streams that a decode replica remembers for another gateway."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from baton.core.ids import Epoch, ReplicaId, RequestId
from baton.core.messages import GenerateRequest, TokenUpdate
from baton.core.parking import Parking, TakeStream
from baton.core.sampling import FinishReason, SamplingParams, TokenLogprob
from baton.decode_service import parked_streams
from baton.decode_service.generating import Generating
from baton.decode_service.parked_streams import PARKED_S, ParkedStreams, as_parked
from baton.decode_service.session import GatewaySession
from baton.proto.generate_wire import parked_from_proto, parked_to_proto

D = ReplicaId("d")


def generated(stream_id: str, tokens: tuple[int, ...] = (7, 8), **fields: Any) -> Generating:
    logprobs = fields.pop("logprobs", ())
    reason = fields.pop("finish_reason", None)
    message = GenerateRequest(
        request_id=RequestId(f"r-{stream_id}"),
        attempt=1,
        prompt=(1, 2, 3),
        parking=Parking(stream_id, b"alice", b"order") if stream_id else None,
        **fields,
    )
    generating = Generating(message, GatewaySession(Epoch("g")), 0.0, 4)
    update = TokenUpdate(
        request_id=message.request_id,
        attempt=1,
        tokens=tokens,
        logprobs=logprobs,
        finish_reason=reason,
    )
    generating.give_out(update, 1.0, D)
    return generating


def test_a_stream_is_found_as_it_stood_and_travels_whole() -> None:
    parked, entry = ParkedStreams(), TokenLogprob(token=7, logprob=-0.5)
    wants = SamplingParams(num_logprobs=0, seed=5)
    told = generated(
        "a", (7,), output=(), sampling=wants, logprobs=(entry,), finish_reason=FinishReason.STOP
    )
    parked.park(told, D, 0.0)

    found = parked.get(TakeStream("a", b"alice"), PARKED_S / 2)
    assert found is not None and found == parked.get(TakeStream("a", b"alice"), PARKED_S / 2)
    assert (found.request.output, found.logprobs) == ((7,), (entry,))
    assert (found.finish_reason, found.request.sampling.seed) == (FinishReason.STOP, 5)
    assert found.request.parking == Parking("a", b"alice", b"order")
    assert parked.get(TakeStream("a", b"bob"), PARKED_S / 2) is None
    assert parked.get(TakeStream("a", b"alice", ("/v1/completions",)), PARKED_S / 2) is None
    assert parked_from_proto(parked_to_proto(found)) == found
    assert parked.get(TakeStream("a", b"alice"), PARKED_S) is None


@pytest.mark.parametrize("tokens", [(), (7,)])
def test_a_resumed_stream_with_logprobs_is_not_handed_on_without_the_first_ones(
    tokens: tuple[int, ...],
) -> None:
    wants, entry = SamplingParams(num_logprobs=0), TokenLogprob(token=7, logprob=-0.5)
    resumed = generated("a", tokens, output=(5, 6), sampling=wants, logprobs=(entry,) * len(tokens))

    assert as_parked(resumed, D) is None


@pytest.mark.parametrize("why", ["not wanted", "failed", "moved", "lacks logprobs"])
def test_what_cannot_be_written_anew_is_not_remembered(why: str) -> None:
    parked, wants = ParkedStreams(), SamplingParams(num_logprobs=0)
    sampling = wants if why == "lacks logprobs" else SamplingParams()
    told = generated("" if why == "not wanted" else "a", sampling=sampling)
    told.error, told.has_left = "broke" if why == "failed" else "", why == "moved"

    parked.park(told, D, 0.0)

    assert len(parked) == 0


def test_the_oldest_are_forgotten_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parked_streams, "MAX_PARKED_BYTES", 500)  # of 205 each
    parked = ParkedStreams()
    for number in range(3):
        parked.park(generated(str(number)), D, float(number))
    parked.park(generated("2", (7, 8, 9)), D, 3.0)  # a later attempt of the same

    assert [parked.get(TakeStream(str(number), b"alice"), 3.0) is None for number in range(3)] == [
        True,
        False,
        False,
    ]
    found = parked.get(TakeStream("2", b"alice"), 3.0)
    assert found is not None and found.request.output == (7, 8, 9)


def test_long_orders_and_logprobs_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parked_streams, "MAX_PARKED_BYTES", 1000)
    parked, wants = ParkedStreams(), SamplingParams(num_logprobs=5)
    entry = TokenLogprob(token=7, logprob=-0.5, top=tuple((n, -0.5) for n in range(5)))
    long = generated("long")
    long.message = replace(long.message, parking=Parking("long", b"alice", bytes(1000)))

    parked.park(generated("told", (7,), sampling=wants, logprobs=(entry,)), D, 0.0)
    parked.park(long, D, 0.0)
    assert len(parked) == 0
    parked.park(generated("short"), D, 0.0)
    assert len(parked) == 1
