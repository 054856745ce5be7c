"""Which prefill replica computes a prompt, and what a placement says of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from tests.gateway.fleet.known_replicas import view_of
from tests.router.placing import (
    LONG,
    NAMES,
    asked,
    decode,
    lent,
    place,
    place_at,
    placer,
    prefill,
    send,
)

from baton.core.ids import RequestId
from baton.core.replicas import Capacity


def test_a_long_prompt_is_prefilled_elsewhere() -> None:
    assert place_at(LONG, decode=[decode("d")], prefill=[prefill("p")]) == ("d", ["p"])


def test_equals_are_drawn_by_the_requests_id_evenly_and_as_the_reason_says() -> None:
    decodes, prefills = [decode(f"d{n}") for n in range(4)], [prefill(f"p{n}") for n in range(4)]
    first, second, reasons = Counter[str](), Counter[str](), set[str]()
    for number in range(400):
        request = replace(LONG, request_id=RequestId(f"request {number}"))
        placement = place(request, decode=decodes, prefill=prefills)
        again = place(request, decode=decodes[::-1], prefill=prefills[::-1])
        assert placement is not None and again is not None
        assert (placement.decode, placement.prefill) == (again.decode, again.prefill)
        first.update([placement.decode.replica_id, placement.prefill[0].replica_id])
        second[placement.prefill[1].replica_id] += 1
        reasons.add(placement.reason)

    assert set(first) == {f"{role}{n}" for role in "dp" for n in range(4)}
    assert all(60 < count < 140 for count in first.values()), first
    # Nor do all whom the first refuses go on to the same.
    assert set(second) == {f"p{n}" for n in range(4)}
    assert all(60 < count < 140 for count in second.values()), second
    assert all(
        reason.endswith("; drawn by the request's id from 4 equal prefill replicas")
        for reason in reasons
    )


def test_prefill_replicas_are_ranked_by_queue_and_cache() -> None:
    replicas = [
        prefill("queued", num_queued_tokens=300),
        prefill("idle"),
        prefill("cached", num_cached_tokens=200),
    ]

    assert place_at(LONG, decode=[decode("d")], prefill=replicas)[1] == ["cached", "idle"]


def test_where_one_prefill_replica_is_late_another_is_chosen() -> None:
    stuck, idle = lent("stuck"), lent("idle")
    only_stuck = view_of(decode=(decode("d", max_open=9),), prefill=(stuck,))
    router = placer()
    send(router.place(asked("first"), NAMES, only_stuck, 0.0), only_stuck, 0.0)
    view = view_of(decode=list(only_stuck.decode), prefill=(stuck, idle))

    placement = router.place(asked("second"), NAMES, view, 5.0)

    assert send(placement, view, 5.0) == "idle"


def test_a_prompt_on_its_way_to_a_replica_draws_equal_ones_after_it() -> None:
    idle, expecting = decode("idle"), decode("expecting", num_open=1, num_expected_tokens=960)

    assert place_at(LONG, decode=[idle, expecting], prefill=[])[0] == "expecting"
    assert place_at(
        LONG,
        decode=[idle],
        prefill=[prefill("idle"), prefill("expecting", num_expected_tokens=960)],
    )[1] == ["expecting", "idle"]


def test_a_prefill_replica_is_charged_with_what_it_has_to_compute_only() -> None:
    peer = prefill("p", num_cached_tokens=300, num_expected_tokens=600)

    placement = place(LONG, decode=[decode("d")], prefill=[peer])
    local = place(LONG, decode=[decode("d")], prefill=[])

    assert placement is not None
    assert placement.num_prefill_tokens == 400
    assert local is not None
    assert local.num_prefill_tokens == 1000


def test_the_reason_says_what_spoke_for_the_placement() -> None:
    placement = place(
        LONG,
        decode=[decode("d", num_open=2)],
        prefill=[prefill("p", num_queued_tokens=7, num_cached_tokens=16)],
    )

    assert placement is not None
    assert placement.reason == "p has least cost of 1: 0.007 s until it is free, 16 tokens cached"


def test_the_reason_tells_tokens_that_are_cached_from_those_that_other_requests_bring() -> None:
    peer = prefill("p", num_cached_tokens=300, num_expected_tokens=600)

    placement = place(LONG, decode=[decode("d")], prefill=[peer])

    assert placement is not None
    assert placement.reason == (
        "p has least cost of 1: 0.000 s until it is free, 300 tokens cached, 300 more expected"
    )


def test_a_replica_that_says_it_drains_is_sent_nothing_though_the_registry_knows_nothing() -> None:
    draining = prefill("draining", capacity=Capacity(is_draining=True))
    other = prefill("other", num_queued_tokens=5000)

    assert place_at(LONG, decode=[decode("d")], prefill=[draining, other])[1] == ["other"]
