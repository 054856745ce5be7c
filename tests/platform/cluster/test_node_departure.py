"""A node is empty before its pod ends."""

from __future__ import annotations

import pytest

from baton.core.clock import ManualClock
from baton.core.errors import DeadlineExceeded
from baton.platform.cluster.node_departure import wait_until_empty


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
