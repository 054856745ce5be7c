"""A node is empty before its pod ends."""

from __future__ import annotations

import pytest

from baton.core.clock import ManualClock
from baton.core.errors import DeadlineExceeded
from baton.platform.cluster.node_departure import (
    TOLD_WITHIN_S,
    wait_for_others,
    wait_until_empty,
)


class Node:
    """With so many actors each time it is asked; the last number stays."""

    def __init__(self, *counts: int) -> None:
        self.counts = list(counts)
        self.announced: list[float] = []

    def announce(self, seconds: float) -> None:
        self.announced.append(seconds)

    def num_actors(self) -> int:
        assert self.announced, "Ray is told first, or new ones would come"
        return self.counts.pop(0) if len(self.counts) > 1 else self.counts[0]


def leave(node: Node, seconds: float) -> list[str]:
    clock, said = ManualClock(), list[str]()
    wait_until_empty(node, seconds, said.append, clock, clock.advance)
    return said


def test_a_node_may_go_when_its_last_process_has_left() -> None:
    node = Node(2, 2, 1, 0)

    assert leave(node, 90) == [
        "2 processes have yet to leave this node",
        "1 processes have yet to leave this node",
        "nothing is left on this node",
    ]
    assert node.announced == [90]


def test_a_node_that_is_not_empty_in_time_says_what_becomes_of_its_requests() -> None:
    with pytest.raises(DeadlineExceeded, match="placed again by the gateways"):
        leave(Node(1), 5)


class Head:
    """Others leave between these times."""

    def __init__(self, clock: ManualClock, began: float, ended: float) -> None:
        self.clock, self.began, self.ended = clock, began, ended

    def num_leaving(self) -> int:
        return 2 if self.began <= self.clock() < self.ended else 0


def left_last(began: float, ended: float, seconds: float) -> tuple[float, list[str]]:
    clock, said = ManualClock(), list[str]()
    start = clock()
    head = Head(clock, start + began, start + ended)
    wait_for_others(head, seconds, said.append, clock, clock.advance)
    return clock() - start, said


def test_the_head_stays_until_those_that_leave_with_it_have_gone() -> None:
    took, said = left_last(3, 60, 295)

    assert 60 <= took < 61
    assert said == ["2 nodes have yet to leave this cluster", "no node is leaving"]


def test_a_head_that_leaves_alone_waits_for_nobody_who_stays() -> None:
    took, _ = left_last(0, 0, 295)

    assert took <= TOLD_WITHIN_S + 1


def test_a_head_goes_in_time_even_if_others_do_not() -> None:
    with pytest.raises(DeadlineExceeded, match="2 nodes have not left after 100 s"):
        left_last(1, 1000, 100)
