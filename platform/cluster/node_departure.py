"""A node of Ray leaves: its replicas come up elsewhere, and drain, before its pod ends.

told                        Ray places nothing more there; Serve starts replacements elsewhere
they run, or time is short  Serve stops the node's replicas, and each drains: requests move with
                            their KV
no actor is left            the node may go

A whole cluster ends pod by pod, at the same time: its head, without which nobody drains, stays
until the others have gone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from baton.core.clock import Clock, monotonic
from baton.core.errors import DeadlineExceeded, Unavailable

POLL_S = 0.5
REASON = "DRAIN_NODE_REASON_PREEMPTION"
"""The one that Ray never declines."""
TOLD_WITHIN_S = 15.0
"""Of pods that end together each has told Ray by then: its command starts an interpreter first."""


class LeavingNode(Protocol):
    def announce(self, seconds: float) -> None:
        """Raises Unavailable if Ray declines."""

    def num_actors(self) -> int:
        """Those that are alive there."""


def wait_until_empty(
    node: LeavingNode,
    seconds: float,
    say: Callable[[str], None],
    clock: Clock = monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Raises DeadlineExceeded if it is not empty by then."""
    deadline = clock() + seconds
    node.announce(seconds)
    num_told = -1
    while num_actors := node.num_actors():
        if num_actors != num_told:
            say(f"{num_actors} processes have yet to leave this node")
            num_told = num_actors
        if clock() >= deadline:
            raise DeadlineExceeded(
                f"{num_actors} processes are still on this node after {seconds:g} s; their "
                "requests are placed again by the gateways"
            )
        sleep(POLL_S)
    say("nothing is left on this node")


class Head(Protocol):
    def num_leaving(self) -> int:
        """Other nodes that have been announced and still are there."""


def wait_for_others(
    head: Head,
    seconds: float,
    say: Callable[[str], None],
    clock: Clock = monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Returns when no node leaves any more; those that stay are not waited for. Raises
    DeadlineExceeded."""
    began = clock()
    num_told = 0
    while (num_leaving := head.num_leaving()) or clock() - began < min(TOLD_WITHIN_S, seconds):
        if num_leaving and num_leaving != num_told:
            say(f"{num_leaving} nodes have yet to leave this cluster")
            num_told = num_leaving
        if clock() - began >= seconds:
            raise DeadlineExceeded(
                f"{num_leaving} nodes have not left after {seconds:g} s; the head ends before them"
            )
        sleep(POLL_S)
    say("no node is leaving")


@dataclass(frozen=True, slots=True)
class RayNode:
    """The node that this process is on."""

    node_id: str
    gcs_address: str

    def announce(self, seconds: float) -> None:
        # What `ray drain-node` calls, without another interpreter's start.
        from ray._raylet import GcsClient  # type: ignore[attr-defined]
        from ray.core.generated import autoscaler_pb2

        ends_ms = time.time_ns() // 1_000_000 + int(seconds * 1000)
        reason = autoscaler_pb2.DrainNodeReason.Value(REASON)  # type: ignore[attr-defined]
        is_accepted, why = GcsClient(address=self.gcs_address).drain_node(
            self.node_id, reason, "its pod ends", ends_ms
        )
        if not is_accepted:
            raise Unavailable(f"Ray does not let this node leave: {why}")

    def num_actors(self) -> int:
        from ray.util.state import list_actors

        return len(list_actors(filters=[("state", "=", "ALIVE"), ("node_id", "=", self.node_id)]))

    def num_leaving(self) -> int:
        from ray._raylet import GcsClient  # type: ignore[attr-defined]

        return len(set(GcsClient(address=self.gcs_address).get_draining_nodes()) - {self.node_id})


def own_node() -> RayNode:
    """Raises Unavailable where no Ray node runs."""
    import ray

    try:
        ray.init(address="auto", log_to_driver=False, logging_level=logging.ERROR)
    except ConnectionError as error:
        raise Unavailable(f"no Ray node runs here ({error}); nothing has to leave") from error
    context = ray.get_runtime_context()
    return RayNode(context.get_node_id(), context.gcs_address)
