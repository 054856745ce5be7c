"""Where requests are placed. Replicas are views: facts a gateway believes, made up here."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.fleet.known_replicas import known, make_replica

from baton.core.ids import Epoch, RequestId
from baton.core.messages import Capacity, Role
from baton.core.step_times import StepTimes
from baton.router.placement import Placement, PlacementRequest
from baton.router.placer import (
    LINE_PER_REPLICA,
    MAX_PREFILL_CANDIDATES,
    RUNNING_REQUEST_COST,
    Placer,
    Routing,
)
from baton.router.policies.cost import BASE_PRICE, Cost
from baton.router.prompt import Prompt
from baton.router.prompt_names import PromptNames
from baton.router.speed import MeasuredSpeed
from baton.router.turns import Turns
from baton.router.view import ReplicaView, View

NAMES = PromptNames()
LONG = PlacementRequest(request_id=RequestId("r"), num_tokens=1000)


def decode(name: str, *, max_open: int = 4, is_ready: bool = True, **facts: Any) -> ReplicaView:
    return known(make_replica(name, max_open=max_open, is_ready=is_ready), **facts)


def prefill(name: str, *, is_ready: bool = True, **facts: Any) -> ReplicaView:
    return known(make_replica(name, role=Role.PREFILL, is_ready=is_ready), **facts)


def placer(local_prefill_tokens: int = 64) -> Placer:
    return Placer(Routing(Cost(), local_prefill_tokens), lambda names, epoch: 0)


def place(
    request: PlacementRequest, *, decode: list[ReplicaView], prefill: list[ReplicaView]
) -> Placement | None:
    view = View(decode=tuple(decode), prefill=tuple(prefill))
    placed = placer().place(request, NAMES, view, now=0.0)
    assert not isinstance(placed, Prompt), "nobody here lends credit"
    return placed


def place_at(
    request: PlacementRequest, *, decode: list[ReplicaView], prefill: list[ReplicaView]
) -> tuple[str, list[str]]:
    placement = place(request, decode=decode, prefill=prefill)
    assert placement is not None
    return placement.decode.replica_id, [peer.replica_id for peer in placement.prefill]


def test_a_long_prompt_is_prefilled_elsewhere() -> None:
    assert place_at(LONG, decode=[decode("d")], prefill=[prefill("p")]) == ("d", ["p"])


def test_a_short_prompt_is_computed_locally_up_to_the_limit() -> None:
    replicas: dict[str, Any] = {"decode": [decode("d")], "prefill": [prefill("p")]}

    assert place_at(replace(LONG, num_tokens=64), **replicas) == ("d", [])
    assert place_at(replace(LONG, num_tokens=65), **replicas) == ("d", ["p"])


def test_a_long_prompt_that_is_mostly_cached_is_computed_locally() -> None:
    almost = decode("d", num_cached_tokens=940)

    placement = place(LONG, decode=[almost], prefill=[prefill("p")])

    assert placement is not None
    assert placement.prefill == ()
    assert placement.reason == "60 of 1000 tokens uncached: computed locally"


def test_without_prefill_replicas_even_long_prompts_are_computed_locally() -> None:
    placement = place(LONG, decode=[decode("d")], prefill=[prefill("p", is_ready=False)])

    assert placement is not None
    assert placement.prefill == ()
    assert "no prefill replica" in placement.reason


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


def test_equals_are_drawn_by_the_requests_id_evenly_and_as_the_reason_says() -> None:
    decodes, prefills = [decode(f"d{n}") for n in range(4)], [prefill(f"p{n}") for n in range(4)]
    first, reasons = Counter[str](), set[str]()
    for number in range(400):
        request = replace(LONG, request_id=RequestId(f"request {number}"))
        placement = place(request, decode=decodes, prefill=prefills)
        again = place(request, decode=decodes[::-1], prefill=prefills[::-1])
        assert placement is not None and again is not None
        assert (placement.decode, placement.prefill[0]) == (again.decode, again.prefill[0])
        first.update([placement.decode.replica_id, placement.prefill[0].replica_id])
        reasons.add(placement.reason)

    assert set(first) == {f"{role}{n}" for role in "dp" for n in range(4)}
    assert all(60 < count < 140 for count in first.values()), first
    assert all(
        reason.endswith("; drawn by the request's id from 4 equal prefill replicas")
        for reason in reasons
    )


def test_a_cached_prefix_draws_a_request_until_the_replica_has_clearly_more_other_work() -> None:
    idle = decode("idle")
    within = decode("cached", num_cached_tokens=400, num_queued_tokens=439)
    beyond = decode("cached", num_cached_tokens=400, num_queued_tokens=441)

    assert place_at(LONG, decode=[idle, within], prefill=[])[0] == "cached"
    assert place_at(LONG, decode=[idle, beyond], prefill=[])[0] == "idle"


def test_prefill_replicas_are_ranked_by_queue_and_cache() -> None:
    replicas = [
        prefill("queued", num_queued_tokens=300),
        prefill("idle"),
        prefill("cached", num_cached_tokens=200),
    ]

    assert place_at(LONG, decode=[decode("d")], prefill=replicas)[1] == ["cached", "idle"]


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


def test_a_prompt_on_its_way_to_a_replica_draws_equal_ones_after_it() -> None:
    idle, expecting = decode("idle"), decode("expecting", num_open=1, num_expected_tokens=960)

    assert place_at(LONG, decode=[idle, expecting], prefill=[])[0] == "expecting"
    assert place_at(
        LONG,
        decode=[idle],
        prefill=[prefill("idle"), prefill("expecting", num_expected_tokens=960)],
    )[1] == ["expecting", "idle"]


def test_a_prompt_that_is_still_on_its_way_is_not_computed_locally_as_if_it_were_there() -> None:
    expecting = decode("d", num_expected_tokens=992)

    assert place_at(LONG, decode=[expecting], prefill=[prefill("p")]) == ("d", ["p"])


def test_a_prefill_replica_is_charged_with_what_it_has_to_compute_only() -> None:
    peer = prefill("p", num_cached_tokens=300, num_expected_tokens=600)

    placement = place(LONG, decode=[decode("d")], prefill=[peer])
    local = place(LONG, decode=[decode("d")], prefill=[])

    assert placement is not None
    assert placement.num_prefill_tokens == 400
    assert local is not None
    assert local.num_prefill_tokens == 1000


def test_a_request_goes_beside_the_one_it_belongs_to_though_others_have_less_work() -> None:
    beside = decode("beside", num_open=3, num_queued_tokens=5000, num_cached_tokens=996)
    near = replace(LONG, near=beside.info.epoch)

    placement = place(near, decode=[decode("idle"), beside], prefill=[prefill("p")])

    assert placement is not None
    assert (placement.decode.replica_id, placement.prefill) == ("beside", ())
    assert placement.reason == (
        "beside another choice of this request; 4 of 1000 tokens uncached: computed locally"
    )


def test_a_further_choice_counts_what_the_first_has_brought_before_events_tell_of_it() -> None:
    first = decode("d", num_open=1, num_expected_tokens=LONG.num_tokens)
    near = replace(LONG, near=first.info.epoch)

    placement = place(near, decode=[first], prefill=[prefill("p")])
    of_a_stranger = place(LONG, decode=[first], prefill=[prefill("p")])

    assert placement is not None and placement.prefill == ()
    assert of_a_stranger is not None and len(of_a_stranger.prefill) == 1


def test_beside_another_only_the_last_block_may_be_missing_for_a_local_prefill() -> None:
    always_remote = placer(local_prefill_tokens=0)
    block_size = decode("d").info.layout.block_size
    near = replace(LONG, near=decode("d").info.epoch)

    def is_local(num_cached: int) -> bool:
        there = View(decode=(decode("d", num_cached_tokens=num_cached),), prefill=(prefill("p"),))
        placement = always_remote.place(near, NAMES, there, 0.0)
        assert isinstance(placement, Placement)
        return not placement.prefill

    assert is_local(1000 - block_size)
    assert not is_local(1000 - block_size - 1)


def test_a_neighbour_that_is_full_or_lost_does_not_hold_a_request_up() -> None:
    full = decode("full", num_open=4)
    lost = decode("lost")

    for neighbour in (full, lost):
        request = replace(LONG, near=neighbour.info.epoch, lost=frozenset({lost.info.epoch}))
        assert place_at(request, decode=[neighbour, decode("other")], prefill=[])[0] == "other"


def test_what_must_be_computed_locally_is_and_says_why() -> None:
    request = replace(LONG, local_because="an embedding of the prompt")

    placement = place(request, decode=[decode("d")], prefill=[prefill("p")])

    assert placement is not None
    assert placement.prefill == ()
    assert placement.reason == "an embedding of the prompt: computed locally"


def test_the_reason_says_what_spoke_for_the_placement() -> None:
    placement = place(
        LONG,
        decode=[decode("d", num_open=2)],
        prefill=[prefill("p", num_queued_tokens=7, num_cached_tokens=16)],
    )

    assert placement is not None
    assert placement.reason == ("p has least cost of 1: 0.007 s until it is free, 16 tokens cached")


# Properties of every placement.

NUM_TOKENS = 256


@st.composite
def replica_views(draw: st.DrawFn, role: Role, number: int) -> ReplicaView:
    max_open = draw(st.integers(0, 3))
    capacity = st.builds(Capacity, max_open=st.integers(0, 3))
    return known(
        make_replica(
            f"{role}-{number}", role=role, max_open=max_open, is_ready=draw(st.booleans())
        ),
        is_connected=draw(st.booleans()),
        num_open=draw(st.integers(0, 3)),
        num_queued_tokens=draw(st.integers(0, 512)),
        num_cached_tokens=draw(st.integers(0, NUM_TOKENS)),
        num_expected_tokens=draw(st.integers(0, NUM_TOKENS)),
        capacity=draw(st.none() | capacity) if role is Role.DECODE else None,
    )


@st.composite
def views(draw: st.DrawFn) -> View:
    return View(
        decode=tuple(draw(replica_views(Role.DECODE, n)) for n in range(draw(st.integers(0, 4)))),
        prefill=tuple(draw(replica_views(Role.PREFILL, n)) for n in range(draw(st.integers(0, 4)))),
    )


def requests(view: View) -> st.SearchStrategy[PlacementRequest]:
    epochs = [replica.info.epoch for replica in view.decode]
    lost: st.SearchStrategy[frozenset[Epoch]] = (
        st.frozensets(st.sampled_from(epochs)) if epochs else st.just(frozenset())
    )
    return st.builds(
        PlacementRequest,
        request_id=st.text(max_size=4).map(RequestId),
        num_tokens=st.just(NUM_TOKENS),
        lost=lost,
    )


def can_take(replica: ReplicaView) -> bool:
    limit = replica.info.max_open if replica.capacity is None else replica.capacity.max_open
    return replica.is_connected and replica.info.is_ready and replica.num_open < limit


def decoding(replica: ReplicaView) -> int:
    busy = replica.num_queued_tokens + RUNNING_REQUEST_COST * replica.num_open
    return busy - max(replica.num_cached_tokens, replica.num_expected_tokens)


def delay(replica: ReplicaView) -> float:
    """Of the prompt, whose work costs a little more than time, and of those that decode there."""
    num_held = max(replica.num_cached_tokens, replica.num_expected_tokens)
    work_s = max(NUM_TOKENS - num_held, 1) / 1000
    price = BASE_PRICE + replica.candidate.num_running
    return round(replica.candidate.busy_s(0.0) + work_s * price, 6)


@given(view=views(), local=st.integers(0, NUM_TOKENS), data=st.data())
def test_every_placement_is_on_replicas_that_can_take_it(
    view: View, local: int, data: st.DataObject
) -> None:
    request = data.draw(requests(view))
    by_epoch = {replica.info.epoch: replica for replica in (*view.decode, *view.prefill)}

    placement = placer(local).place(request, NAMES, view, now=0.0)
    assert not isinstance(placement, Prompt)

    if placement is None:
        assert not any(can_take(replica) for replica in view.decode)
        return
    chosen = by_epoch[placement.decode.epoch]
    assert can_take(chosen)
    rivals = [r for r in view.decode if can_take(r) and r.info.epoch not in request.lost]
    if rivals:
        assert chosen.info.epoch not in request.lost
        least = delay if not any(one.info.is_ready for one in view.prefill) else decoding
        assert least(chosen) == min(least(replica) for replica in rivals)
    peers = [by_epoch[peer.epoch] for peer in placement.prefill]
    assert all(peer.info.role is Role.PREFILL and peer.info.is_ready for peer in peers)
    assert len(set(placement.prefill)) == len(placement.prefill) <= MAX_PREFILL_CANDIDATES
    assert [delay(peer) for peer in peers] == sorted(delay(peer) for peer in peers)


@given(view=views(), local=st.integers(0, NUM_TOKENS), data=st.data())
def test_a_prompt_travels_exactly_when_much_of_it_is_uncached_and_somebody_can_compute_it(
    view: View, local: int, data: st.DataObject
) -> None:
    placement = placer(local).place(data.draw(requests(view)), NAMES, view, 0.0)
    assert not isinstance(placement, Prompt)

    if placement is not None:
        [chosen] = [r for r in view.decode if r.info.epoch == placement.decode.epoch]
        is_long = NUM_TOKENS - chosen.num_cached_tokens > local
        has_peer = any(replica.info.is_ready for replica in view.prefill)
        assert bool(placement.prefill) == (is_long and has_peer)


@given(view=views(), data=st.data())
def test_the_order_in_which_replicas_are_listed_decides_nothing(
    view: View, data: st.DataObject
) -> None:
    request = data.draw(requests(view))
    shuffled = View(
        decode=tuple(data.draw(st.permutations(view.decode))),
        prefill=tuple(data.draw(st.permutations(view.prefill))),
    )

    one, other = (placer().place(request, NAMES, each, 0.0) for each in (view, shuffled))

    assert isinstance(one, Placement | None) and isinstance(other, Placement | None)
    assert (one is None) == (other is None)
    if one is not None and other is not None:
        assert (one.decode, one.prefill, one.source) == (other.decode, other.prefill, other.source)


# Waiting in line for a prefill replica.


def lent(name: str, credit_tokens: int = 0) -> ReplicaView:
    replica = prefill(name)
    replica.candidate.credit_tokens = credit_tokens
    return replica


def asked(name: str) -> PlacementRequest:
    return replace(LONG, request_id=RequestId(name))


def send(placement: Placement | Prompt | None, view: View, now: float) -> str:
    """Book it, as a gateway does; who computes it."""
    assert isinstance(placement, Placement)
    [peer] = [r for r in view.prefill if r.info.epoch == placement.prefill[0].epoch]
    peer.candidate.book(placement.prompt, 0, now)
    return peer.info.replica_id


def test_prompts_wait_in_line_and_not_at_a_replica_that_is_busy() -> None:
    busy = lent("p")
    view, router = View(decode=(decode("d"),), prefill=(busy,)), placer()
    first = router.place(asked("first"), NAMES, view, 0.0)
    send(first, view, 0.0)

    second = router.place(asked("second"), NAMES, view, 0.0)
    assert isinstance(second, Prompt)
    assert not list(router.served(lambda names: view, 0.5))

    assert isinstance(first, Placement)
    busy.candidate.finished(first.prompt, 1.0)
    [(prompt, placement)] = router.served(lambda names: view, 1.0)
    assert prompt is second
    assert send(placement, view, 1.0) == "p"
    assert len(router) == 0


def test_a_prompt_in_line_is_foreseen_and_one_only_asked_about_stands_in_no_line() -> None:
    """Three prompts of a second each, for one replica that computes one after the other."""
    view, router = View(decode=(decode("d"),), prefill=(lent("p"),)), placer()
    send(router.place(asked("first"), NAMES, view, 0.0), view, 0.0)
    router.place(asked("second"), NAMES, view, 0.0)

    outlook = router.outlook(asked("third"), NAMES, view, 0.0)

    assert outlook is not None and len(router) == 1
    assert (outlook.taken.wait_s, outlook.taken.work_s) == (2.0, 1.0)
    [busy] = view.prefill
    [first] = [booking.prompt for booking in busy.candidate.open.values()]
    busy.candidate.finished(first, 1.0)
    [(_, placement)] = router.served(lambda names: view, 1.0)
    assert placement.in_line_s == 1.0
    assert placement.foreseen_s == 2.0 + view.rates.latency_s


def test_who_waits_for_a_replica_that_answers_nobody_goes_to_another_within_two_seconds() -> None:
    """`p1` computes 1000 tokens a second, and says nothing after it got its first prompt."""
    stuck, other = lent("stuck"), lent("other")
    view, router = View(decode=(decode("d", max_open=99),), prefill=(stuck, other)), placer()
    running: dict[str, Prompt] = {}
    for number in range(6):
        placement = router.place(asked(f"r{number}"), NAMES, view, 0.0)
        if isinstance(placement, Placement):
            running[send(placement, view, 0.0)] = placement.prompt
    assert set(running) == {"stuck", "other"} and len(router) == 4

    now = 1.0
    for _ in range(4):  # the other is free again each second
        other.candidate.finished(running["other"], now)
        for prompt in router.stranded(view, now):
            again = router.place(asked(f"again {prompt.number}"), NAMES, view, now)
            if isinstance(again, Placement):
                running[send(again, view, now)] = again.prompt
        for _, placement in router.served(lambda names: view, now):
            running[send(placement, view, now)] = placement.prompt
        assert list(stuck.candidate.open.values())[1:] == []
        now += 1.0
    assert len(router) == 0


def test_what_a_busy_pool_would_keep_waiting_is_computed_where_it_decodes() -> None:
    measured = StepTimes(token_s=0.001, num_prompt_steps=99)
    here = decode("d")
    here.candidate.speed = MeasuredSpeed(times=measured, max_chunk=512)
    busy = lent("p")
    view, router = View(decode=(here,), prefill=(busy,)), placer()
    send(router.place(asked("first"), NAMES, view, 0.0), view, 0.0)

    second = router.place(asked("second"), NAMES, view, 0.0)
    here.candidate.num_running = 5
    third = router.place(asked("third"), NAMES, view, 0.0)

    assert isinstance(second, Placement)
    assert second.prefill == () and "with the wait for a prefill replica" in second.reason
    assert isinstance(third, Prompt), "five others would be held up"


def test_no_more_stand_in_line_than_can_be_chosen_from() -> None:
    view, router = View(decode=(decode("d", max_open=99),), prefill=(lent("p"),)), placer()
    send(router.place(asked("first"), NAMES, view, 0.0), view, 0.0)

    for number in range(LINE_PER_REPLICA):
        assert router.has_space(view)
        assert isinstance(router.place(asked(f"r{number}"), NAMES, view, 0.0), Prompt)

    assert not router.has_space(view)


def test_two_whose_turn_comes_at_once_share_no_place() -> None:
    """One place to decode, two prefill replicas that are free: the second waits on, unharmed."""
    peers = (lent("p1"), lent("p2"))
    room, router = View(decode=(decode("d", max_open=99),), prefill=peers), placer()
    running = []
    for name in ("r0", "r1"):
        running.append(router.place(asked(name), NAMES, room, 0.0))
        send(running[-1], room, 0.0)
    waiting = [router.place(asked(f"w{n}"), NAMES, room, 0.0) for n in range(2)]
    assert all(isinstance(prompt, Prompt) for prompt in waiting)
    for placement in running:
        assert isinstance(placement, Placement)
        for peer in peers:
            peer.candidate.finished(placement.prompt, 1.0)

    full = View(decode=(decode("d", num_open=99, max_open=99),), prefill=peers)
    is_sent: list[str] = []
    for _, placement in router.served(lambda names: full if is_sent else room, 1.0):
        is_sent.append(send(placement, room, 1.0))

    assert len(is_sent) == 1 and len(router) == 1


def test_where_all_prefill_replicas_are_late_nobody_waits_for_them() -> None:
    stuck = lent("p")
    view, router = View(decode=(decode("d", max_open=99),), prefill=(stuck,)), placer()
    send(router.place(asked("first"), NAMES, view, 0.0), view, 0.0)
    assert isinstance(router.place(asked("second"), NAMES, view, 0.0), Prompt)

    [prompt] = router.stranded(view, 2.0)
    again = router.place(replace(asked("second"), arrived_s=0.0), NAMES, view, 2.0)

    assert prompt.arrived_s == 0.0
    assert isinstance(again, Placement)
    assert again.reason == "all prefill replicas are late: computed locally"


def test_an_urgent_prompt_goes_before_those_that_came_first_but_not_for_ever() -> None:
    urgent = Prompt(number=1, num_tokens=10, arrived_s=50.0, priority=-3)
    long_ago = Prompt(number=2, num_tokens=10, arrived_s=10.0)
    most_urgent = Prompt(number=3, num_tokens=10, arrived_s=150.0, priority=-(2**31))
    turns = Turns()

    due = [turns.due_s(prompt, 1.0, 0.0) for prompt in (urgent, long_ago, most_urgent)]

    assert due == [20.0, 10.0, 50.0]


def test_a_replica_that_says_it_drains_is_sent_nothing_though_the_registry_knows_nothing() -> None:
    draining = prefill("draining", capacity=Capacity(is_draining=True))
    other = prefill("other", num_queued_tokens=5000)

    assert place_at(LONG, decode=[decode("d")], prefill=[draining, other])[1] == ["other"]
