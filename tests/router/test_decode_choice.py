"""Who decodes a request. Replicas are views: facts a gateway believes, made up here."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.gateway.fleet.known_replicas import view_of
from tests.router.placing import LONG, decode, place, place_at, prefill

from baton.core.ids import RequestId
from baton.core.replicas import Capacity
from baton.core.step_times import StepTimes
from baton.router import decode_costs, fetching
from baton.router.cache.pulling import PullRates
from baton.router.decode_choice import DecodeChoice, TypicalOutput, choose_decode
from baton.router.fetching import held_by
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
        "beside another choice of this request; 4 of 1000 tokens uncached, too few for a handoff "
        "(gateway.short_prompt_tokens): computed locally"
    )


def test_a_neighbour_that_is_full_or_lost_does_not_hold_a_request_up() -> None:
    full = decode("full", num_open=4)
    lost = decode("lost")

    for neighbour in (full, lost):
        request = replace(LONG, near=neighbour.info.epoch, lost=frozenset({lost.info.epoch}))
        assert place_at(request, decode=[neighbour, decode("other")], prefill=[])[0] == "other"


TIMES = StepTimes(constant_s=0.01, token_s=1e-4, context_s=1e-7, num_decode_steps=99)
CAPACITY = Capacity(max_open=99, num_blocks=10_000, num_free_blocks=9000, step_times=TIMES)


def told(name: str, *, num_open: int = 0, received_at_s: float | None = None, **said: Any) -> Any:
    """A decode replica by its own word, which it said when `num_open` requests were there."""
    capacity = replace(CAPACITY, **said)
    replica = decode(
        name,
        max_open=99,
        num_open=num_open,
        num_queued_tokens=capacity.num_queued_tokens,
        capacity=capacity,
    )
    replica.replica.received_at_s = received_at_s
    return replica


def chosen(*replicas: Any, now: float = 0.0, **asked_for: Any) -> DecodeChoice:
    request = replace(LONG, **asked_for)
    found = choose_decode(request, view_of(replicas, []), now, TypicalOutput())
    assert found is not None
    return found


def decodes(*replicas: Any, **asked_for: Any) -> str:
    return chosen(*replicas, **asked_for).replica.info.replica_id


def test_one_that_is_ten_times_slower_of_late_is_avoided_while_others_are_much_fuller() -> None:
    slow = told("slow", slowness=10.0)
    full = told("full", num_running=30, num_context_tokens=30_000)

    assert decodes(slow, full) == "full"
    assert decodes(told("as ever", slowness=1.0), full) == "as ever"
    by_its_fit = replace(TIMES, constant_s=0.1, token_s=1e-3)
    assert decodes(told("slow by its own fit", step_times=by_its_fit), full) == "full"


def test_one_that_has_measured_nothing_counts_as_fast_as_the_others() -> None:
    new = told("new", step_times=None)

    assert decodes(new, told("busy", num_running=3)) == "new"
    assert decodes(told("new", step_times=None, num_running=3), told("idle")) == "idle"


def test_one_without_blocks_for_prompt_and_answer_is_left_to_those_who_are_there() -> None:
    crammed = told("crammed", num_running=4, num_free_blocks=100)  # 400 tokens
    roomy = told("roomy", num_running=8)

    assert decodes(crammed, roomy) == "roomy"
    assert decodes(crammed, roomy, num_tokens=200) == "crammed"
    assert decodes(crammed, roomy, num_tokens=395, max_output=2) == "crammed"


def test_what_was_sent_since_its_last_word_takes_its_blocks_too() -> None:
    sent = told("sent", num_free_blocks=600)  # for two such requests, of which one is on its way
    sent.replica.num_open = 2
    free = told("free", num_free_blocks=600, num_running=3)

    assert decodes(sent, free) == "free"


def test_what_another_gateway_runs_there_counts_as_much_as_ones_own() -> None:
    others = told("others'", num_running=8, num_waiting=2)
    own = told("own", num_open=9, num_running=9)

    assert decodes(others, own) == "own"
    others.replica.num_open += 1
    own.replica.num_open += 3  # since its word, in which the nine were
    assert decodes(others, own) == "others'"


def test_two_gateways_do_not_send_all_to_the_one_that_was_least_when_it_spoke() -> None:
    """Both go by the same words, which come between their requests."""
    nums = {"a": 0, "b": 3, "c": 6}
    mine = [{name: 0 for name in nums} for _ in range(2)]
    for number in range(30):
        gateway = mine[number % 2]
        every = [
            told(name, num_open=gateway[name], num_running=num, num_context_tokens=1000 * num)
            for name, num in nums.items()
        ]
        found = decodes(*every, request_id=f"r{number}")
        gateway[found] += 1
        nums[found] += 1

    assert set(nums.values()) == {13}


def test_one_that_should_have_spoken_is_avoided_before_it_is_known_to_be_gone() -> None:
    at_work = {"num_running": 1, "num_context_tokens": 1000}
    spoke = told("spoke", received_at_s=9.5, num_running=4, num_context_tokens=4000)

    assert decodes(told("silent", received_at_s=3.0, **at_work), spoke, now=10.0) == "spoke"
    assert (
        decodes(told("spoke, too", received_at_s=9.0, **at_work), spoke, now=10.0) == "spoke, too"
    )
    assert decodes(told("at rest", received_at_s=3.0), spoke, now=10.0) == "at rest"


def test_one_whose_tokens_would_come_too_slowly_is_left_to_those_without_an_objective() -> None:
    slow = told("slow", slowness=4.0)
    full = told("full", num_running=40, num_context_tokens=100_000, num_waiting=40)

    assert decodes(slow, full) == "slow"
    assert decodes(slow, full, itl_s=0.03) == "full"


def test_the_choice_tells_what_each_would_cost_and_of_what_that_is_made() -> None:
    found = chosen(told("idle"), told("slow", slowness=10.0), told("queued", num_queued_tokens=900))

    first, second, third = found.considered
    assert [one.replica_id for one in found.considered] == ["idle", "queued", "slow"]
    assert first.cost_s < second.cost_s < third.cost_s
    assert second.terms["queued_s"] == pytest.approx(0.9)
    assert third.terms["decode_s"] == pytest.approx(10 * first.terms["decode_s"])
    for one in found.considered:
        assert one.cost_s == pytest.approx(sum(one.terms.values()))


def test_answers_that_were_short_make_speed_count_for_less() -> None:
    near = told("near", slowness=3.0)
    near = near._replace(num_cached_tokens=1000)
    typical = TypicalOutput()
    view = view_of([near, told("far")], [])

    def decoded_by() -> str:
        found = choose_decode(LONG, view, 0.0, typical)
        assert found is not None
        return found.replica.info.replica_id

    assert decoded_by() == "far"
    for _ in range(5):
        typical.observe(2)
    assert decoded_by() == "near"


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
                told(
                    f"{n}",
                    num_open=draw.randrange(120),
                    received_at_s=draw.choice([None, 1.0]),
                    num_running=draw.randrange(9),
                    num_queued_tokens=draw.choice([0, 70]),
                    num_free_blocks=draw.choice([9, 9000]),
                    slowness=draw.random() * 3,
                    step_times=draw.choice([None, replace(TIMES, constant_s=draw.random())]),
                )._replace(
                    num_cached_tokens=draw.choice([0, 8]), num_expected_tokens=draw.choice([0, 16])
                )
                for n in range(8)
            ]
            request = replace(LONG, request_id=RequestId(f"r{number}"))
            choice = chosen(*replicas, request_id=request.request_id, now=5.0)
            found.append(list(choice.considered))
            peers = [prefill(f"p{n}", num_cached_tokens=32 * draw.randrange(3)) for n in range(5)]
            peers[draw.randrange(5)].replica.is_away = True
            rates = PullRates(bytes_per_s=draw.choice([1e4, 1e9]), latency_s=1e-3)
            view = view_of(replicas, peers, rates)
            held = held_by(view.prefill, view, request, choice.replica.info)
            found.append([None if one is None else one.tolist() for one in held])
            found.append(fetching.lender_with_most(view.prefill, request, 48))
        return found

    compiled = answers()
    for module in (decode_costs, fetching, routing_policy):
        monkeypatch.setattr(module, "library_without_torch", lambda: None)
    assert answers() == compiled
