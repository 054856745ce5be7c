"""Who decodes a request. Replicas are views: facts a gateway believes, made up here."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import numpy as np
import pytest
from tests.gateway.fleet.known_replicas import view_of
from tests.router.placing import LONG, asked, decode, place, place_at, prefill

from baton.core.replicas import Capacity
from baton.router import decode_choice
from baton.router.decode_choice import choose_decode
from baton.router.policies import routing_policy
from baton.router.policies.routing_policy import Costs, least
from baton.router.prompt import Prompt
from baton.router.replicas.candidate import Candidate
from baton.router.replicas.candidates import CandidateTable
from baton.router.speeds.speed import ConstantRate


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


def test_who_is_least_does_not_depend_on_what_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equals, infinite costs and such that are no numbers, of all or of some; decode replicas."""
    draw = random.Random(1)
    every = CandidateTable(Candidate(f"{n}", ConstantRate(tokens_per_s=1.0)) for n in range(30)).all

    def answers() -> list[object]:
        draw.seed(1)
        found: list[object] = []
        for number in range(60):
            places = np.array(sorted(draw.sample(range(30), draw.randrange(1, 30))))
            some = every if number % 2 else every.at(places)
            costs = draw.choices([0.0, 1.0, 2.5, math.inf, math.nan], k=len(some))
            prompt = Prompt(number=number, num_tokens=9, arrived_s=0.0, draw=draw.getrandbits(64))
            found.append(list(least(prompt, some, Costs(np.array(costs)), draw.randrange(1, 12))))
            replicas = [
                decode(
                    f"{n}",
                    num_open=draw.randrange(5),
                    num_cached_tokens=draw.choice([0, 8]),
                    num_expected_tokens=draw.choice([0, 16]),
                )
                for n in range(8)
            ]
            chosen, _ = choose_decode(asked(f"r{number}"), view_of(replicas, []))
            assert chosen is not None
            found.append(chosen.info.replica_id)
        return found

    compiled = answers()
    for module in (decode_choice, routing_policy):
        monkeypatch.setattr(module, "library_without_torch", lambda: None)
    assert answers() == compiled
