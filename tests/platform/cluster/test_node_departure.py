"""A node is empty before its pod ends."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading

import pytest

from baton.core.clock import ManualClock
from baton.core.errors import DeadlineExceeded
from baton.platform.cluster.nodes.node_departure import (
    ANSWERED_WITHIN_S,
    NOTIFIED_WITHIN_S,
    NoAnswer,
    hard_limit,
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
        "2 processes still to leave this node",
        "1 process still to leave this node",
        "nothing is left on this node",
    ]
    assert node.announced == [90]


def test_a_node_that_is_not_empty_in_time_says_what_becomes_of_its_requests() -> None:
    with pytest.raises(DeadlineExceeded, match="will send its requests to other replicas"):
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
    assert said == ["2 nodes still to leave this cluster", "no node is leaving"]


def test_a_head_that_leaves_alone_waits_for_nobody_who_stays() -> None:
    took, _ = left_last(0, 0, 295)

    assert took <= NOTIFIED_WITHIN_S + 1


def test_a_head_goes_in_time_even_if_others_do_not() -> None:
    with pytest.raises(DeadlineExceeded, match="2 nodes still here after 100 s"):
        left_last(1, 1000, 100)


def test_a_node_asks_again_while_ray_does_not_answer() -> None:
    class Flaky(Node):
        num_calls = 0

        def answer(self) -> None:
            self.num_calls += 1
            if self.num_calls in (1, 2, 4):
                raise NoAnswer("the GCS is away")

        def announce(self, seconds: float) -> None:
            self.answer()
            super().announce(seconds)

        def num_actors(self) -> int:
            self.answer()
            return super().num_actors()

    node = Flaky(1, 0)

    assert leave(node, 90)[-1] == "nothing is left on this node"
    assert node.announced == [89]

    class Away(Node):
        def announce(self, seconds: float) -> None:
            raise NoAnswer("the GCS is away")

    with pytest.raises(DeadlineExceeded, match=r"not known .*the GCS is away.* after 5 s"):
        leave(Away(1), 5)


@pytest.mark.parametrize("answers_until", [0.0, 60.0])
def test_a_head_whose_gcs_has_gone_ends_soon(answers_until: float) -> None:
    clock = ManualClock()

    class Silent(Head):
        def num_leaving(self) -> int:
            if self.clock() >= answers_until:
                clock.advance(1)
                raise NoAnswer("the GCS is away")
            return super().num_leaving()

    with pytest.raises(NoAnswer):
        wait_for_others(Silent(clock, 0, 200), 295, list[str]().append, clock, clock.advance)

    assert answers_until + ANSWERED_WITHIN_S <= clock() <= answers_until + ANSWERED_WITHIN_S + 2


def test_what_takes_longer_than_its_limit_is_ended_and_nothing_else_is() -> None:
    ended = threading.Event()
    with hard_limit(0.01, ended.set):
        assert ended.wait(120)
    ended.clear()
    with hard_limit(3600.0, ended.set):
        [timer] = [one for one in threading.enumerate() if getattr(one, "interval", 0) == 3600.0]
    timer.join()
    assert not ended.is_set()


@pytest.mark.wide
def test_the_command_ends_in_time_though_the_gcs_never_answers() -> None:
    with socket.create_server(("", 0)) as hung:
        address = f"127.0.0.1:{hung.getsockname()[1]}"
        baton = "from baton.platform.cli.main import app; app()"
        command = [sys.executable, "-c", baton, "k8s", "leave", "--seconds", "2"]
        done = subprocess.run(
            command,
            env={**os.environ, "RAY_ADDRESS": address},
            capture_output=True,
            text=True,
            timeout=150,  # which Ray alone would outlast
        )

    assert done.returncode == 1
    assert "no answer from Ray in the time that this node has" in done.stderr
