"""Who decodes a request. Replicas are views: facts a gateway believes, made up here."""

from __future__ import annotations

from dataclasses import replace

from tests.router.placing import LONG, decode, place, place_at, prefill

from baton.core.messages import Capacity


def test_the_decode_replica_with_the_least_work_wins() -> None:
    replicas = [
        decode("queued", num_queued_tokens=500),
        decode("idle"),
        decode("serving", num_open=3),
    ]

    assert place_at(LONG, decode=replicas, prefill=[])[0] == "idle"


def test_equals_are_filled_evenly() -> None:
    replicas = [decode("busy", num_open=2), decode("less busy", num_open=1)]

    assert place_at(LONG, decode=replicas, prefill=[])[0] == "less busy"


def test_a_cached_prefix_draws_a_request_until_the_replica_has_clearly_more_other_work() -> None:
    idle = decode("idle")
    within = decode("cached", num_cached_tokens=400, num_queued_tokens=439)
    beyond = decode("cached", num_cached_tokens=400, num_queued_tokens=441)

    assert place_at(LONG, decode=[idle, within], prefill=[])[0] == "cached"
    assert place_at(LONG, decode=[idle, beyond], prefill=[])[0] == "idle"


def test_a_replicas_own_word_on_its_room_counts_more_than_what_it_registered() -> None:
    shared = decode("shared", num_open=2, max_open=4, capacity=Capacity(max_open=2))

    assert place(LONG, decode=[shared], prefill=[]) is None


def test_a_lost_replica_is_tried_again_only_when_no_other_has_room() -> None:
    lost = decode("lost", num_cached_tokens=1000)
    other = decode("other", num_queued_tokens=10_000)
    full = decode("full", num_open=4)
    request = replace(LONG, lost=frozenset({lost.info.epoch}))

    assert place_at(request, decode=[lost, other], prefill=[])[0] == "other"
    assert place_at(request, decode=[lost, full], prefill=[])[0] == "lost"


def test_a_request_goes_beside_the_one_it_belongs_to_though_others_have_less_work() -> None:
    beside = decode("beside", num_open=3, num_queued_tokens=5000, num_cached_tokens=996)
    near = replace(LONG, near=beside.info.epoch)

    placement = place(near, decode=[decode("idle"), beside], prefill=[prefill("p")])

    assert placement is not None
    assert (placement.decode.replica_id, placement.prefill) == ("beside", ())
    assert placement.reason == (
        "beside another choice of this request; 4 of 1000 tokens uncached: computed locally"
    )


def test_a_neighbour_that_is_full_or_lost_does_not_hold_a_request_up() -> None:
    full = decode("full", num_open=4)
    lost = decode("lost")

    for neighbour in (full, lost):
        request = replace(LONG, near=neighbour.info.epoch, lost=frozenset({lost.info.epoch}))
        assert place_at(request, decode=[neighbour, decode("other")], prefill=[])[0] == "other"
