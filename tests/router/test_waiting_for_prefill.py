"""Prompts in line for a prefill replica: when they go, and where."""

from __future__ import annotations

import math

import numpy as np
from tests.gateway.fleet.known_replicas import view_of
from tests.router.placing import NAMES, asked, decode, lent, placer, send

from baton.router.fairness.turns import Turns
from baton.router.placement import Placement
from baton.router.placer import LINE_PER_REPLICA
from baton.router.prompt import Prompt


def test_prompts_wait_in_line_and_not_at_a_replica_that_is_busy() -> None:
    busy = lent("p")
    view, router = view_of(decode=(decode("d"),), prefill=(busy,)), placer()
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
    view, router = view_of(decode=(decode("d"),), prefill=(lent("p"),)), placer()
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
    view, router = view_of(decode=(decode("d", max_open=99),), prefill=(stuck, other)), placer()
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


def test_no_more_stand_in_line_than_can_be_chosen_from() -> None:
    view, router = view_of(decode=(decode("d", max_open=99),), prefill=(lent("p"),)), placer()
    send(router.place(asked("first"), NAMES, view, 0.0), view, 0.0)

    for number in range(LINE_PER_REPLICA):
        assert router.has_space(view)
        assert isinstance(router.place(asked(f"r{number}"), NAMES, view, 0.0), Prompt)

    assert not router.has_space(view)


def test_two_whose_turn_comes_at_once_share_no_place() -> None:
    """One place to decode, two prefill replicas that are free: the second waits on, unharmed."""
    peers = (lent("p1"), lent("p2"))
    room, router = view_of(decode=(decode("d", max_open=99),), prefill=peers), placer()
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

    full = view_of(decode=(decode("d", num_open=99, max_open=99),), prefill=peers)
    is_sent: list[str] = []
    for _, placement in router.served(lambda names: full if is_sent else room, 1.0):
        is_sent.append(send(placement, room, 1.0))

    assert len(is_sent) == 1 and len(router) == 1


def test_an_urgent_prompt_goes_before_those_that_came_first_but_not_for_ever() -> None:
    urgent = Prompt(number=1, num_tokens=10, arrived_s=50.0, priority=-3)
    long_ago = Prompt(number=2, num_tokens=10, arrived_s=10.0)
    most_urgent = Prompt(number=3, num_tokens=10, arrived_s=150.0, priority=-(2**31))
    turns = Turns()

    due = [turns.due_s(prompt, 1.0, 0.0, 150.0) for prompt in (urgent, long_ago, most_urgent)]

    assert due == [20.0, 10.0, 50.0]


def test_of_those_that_wait_the_one_that_must_begin_first_is_first_and_late_ones_are_last() -> None:
    turns = Turns()
    turns.observe(4.0)  # without an objective, nobody is due later than 12 s after its arrival

    def due_s(
        number: int,
        arrived_s: float,
        due_by_s: float = math.inf,
        work_s: float = 2.0,
        line_s: float = 0.0,
    ) -> float:
        prompt = Prompt(number=number, num_tokens=10, arrived_s=arrived_s, due_s=due_by_s)
        found = turns.due_s(prompt, work_s, line_s, 100.0)
        assert found == turns.dues_s(prompt, np.full(1, work_s), np.full(1, line_s), 100.0)[0]
        return found

    assert due_s(1, 99.0, 103.0) == 101.0  # begins by then, or is late
    assert due_s(2, 99.0) == 105.0
    assert due_s(3, 90.0, 101.5) == 102.0  # it is late: after all that came so long before
    assert due_s(4, 99.0, 1000.0) == 199.0  # however long it may take
    assert due_s(5, 90.0, 101.5, line_s=500.0) == 190.0  # nor longer if it is late
    assert due_s(6, 99.0, 99.1, work_s=0.25) == due_s(6, 99.0, work_s=0.25) == 99.75  # it is short


def test_who_was_bound_late_is_told_why_it_went_there_though_another_costs_less() -> None:
    """It waits for `p1`, which is free first, and then says how much it has to do for others."""
    peers = (lent("p1"), lent("p2"))
    view, router = view_of(decode=(decode("d", max_open=99),), prefill=peers), placer()
    busy = []
    for name in ("r1", "r2"):
        placement = router.place(asked(name), NAMES, view, 0.0)
        busy.append((send(placement, view, 0.0), placement))
    waits = router.place(asked("waits"), NAMES, view, 0.0)
    assert isinstance(waits, Prompt)
    [waited_for] = [one.candidate for one in peers if one.candidate.waiting]
    [(_, placement)] = [one for one in busy if one[0] == waited_for.name]
    assert isinstance(placement, Placement)
    waited_for.finished(placement.prompt, 2.2)
    waited_for.observe(10_000, 0, now=2.2)

    [(_, placement)] = router.served(lambda names: view, 2.2)

    assert placement.reason == (
        f"its turn for {waited_for.name} came after 2.2 s in line:"
        " 10.000 s until it is free, 0 tokens cached"
    )


def test_equals_are_drawn_from_only_where_the_choice_is_made_at_once() -> None:
    peers = (lent("p1"), lent("p2"))
    view, router = view_of(decode=(decode("d", max_open=99),), prefill=peers), placer()
    sent = [router.place(asked(name), NAMES, view, 0.0) for name in "ab"]
    for placement in sent:
        assert isinstance(placement, Placement)
        for peer in peers:
            peer.candidate.book(placement.prompt, 0, 0.0)
    assert isinstance(router.place(asked("c"), NAMES, view, 0.0), Prompt)
    for placement in sent:
        assert isinstance(placement, Placement)
        for peer in peers:
            peer.candidate.finished(placement.prompt, 2.0)

    [(_, late)] = router.served(lambda names: view, 2.0)

    assert isinstance(sent[0], Placement) and "drawn by" in sent[0].reason
    assert "has least cost of 2" in late.reason and "drawn by" not in late.reason
