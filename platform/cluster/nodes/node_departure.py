"""Removes a Ray node before its pod ends: its replicas start elsewhere, and drain.

announced                   Ray places nothing more there; Serve starts replacements elsewhere
they run, or time is short  Serve stops the node's replicas; each drains, and requests move with KV
no actor is left            the node may go

When a whole cluster ends, all pods end at the same time; the head, without which replicas cannot
drain, stays until the others are gone.

Ray's GCS may hang or be gone meanwhile. Unanswered calls are repeated: by a worker node while it
has time, since the GCS can come back; by the head for a few seconds only. Calls that hang inside
Ray end with the process.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from baton.core.clock import Clock, monotonic
from baton.core.errors import DeadlineExceeded, Unavailable
from baton.core.wording import count_of

if TYPE_CHECKING:
    from ray._raylet import GcsClient  # type: ignore[attr-defined]

POLL_S = 0.5
REASON = "DRAIN_NODE_REASON_PREEMPTION"
"""The drain reason that Ray never declines."""
NOTIFIED_WITHIN_S = 15.0
"""Seconds within which pods that end together have all notified Ray; each starts an interpreter
first."""
ANSWERED_WITHIN_S = 10.0
"""Seconds in which the head's own GCS must answer; then the head leaves."""
CALL_S = 5.0
"""Seconds for one call to Ray."""
CLOSED_WITHIN_S = 2.0
"""Seconds to close the connection to Ray, which calls the GCS once more."""


class NoAnswer(Unavailable):
    """Ray's GCS did not answer; safe to retry."""


@contextmanager
def hard_limit(seconds: float, end: Callable[[], object]) -> Iterator[None]:
    """Calls `end`, on another thread, if the block takes longer, to exit the process, since a call
    into Ray cannot be interrupted."""
    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class LeavingNode(Protocol):
    def announce(self, seconds: float) -> None:
        """Raises NoAnswer, or Unavailable if Ray declines."""

    def num_actors(self) -> int:
        """Live actors on the node. Raises NoAnswer."""


def wait_until_empty(
    node: LeavingNode,
    seconds: float,
    say: Callable[[str], None],
    clock: Clock = monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Raises DeadlineExceeded if it is not empty by then."""
    deadline = clock() + seconds
    is_announced, num_told = False, 0
    while True:
        try:
            if not is_announced:
                node.announce(deadline - clock())
                is_announced = True
            num_actors = node.num_actors()
            if not num_actors:
                break
            left = f"still on this node: {count_of(num_actors, 'process', 'processes')}"
            if num_actors != num_told:
                say(f"{count_of(num_actors, 'process', 'processes')} still to leave this node")
                num_told = num_actors
        except NoAnswer as error:
            left = f"it is not known what is on this node ({error})"
        if clock() >= deadline:
            raise DeadlineExceeded(
                f"{left} after {seconds:.0f} s; the gateways will send its requests to other "
                "replicas"
            )
        sleep(POLL_S)
    say("nothing is left on this node")


class Head(Protocol):
    def num_leaving(self) -> int:
        """Other nodes that have announced their departure and still exist. Raises NoAnswer."""


def wait_for_others(
    head: Head,
    seconds: float,
    say: Callable[[str], None],
    clock: Clock = monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Returns when no other node is leaving; staying nodes are not awaited. Raises
    DeadlineExceeded, or NoAnswer after ANSWERED_WITHIN_S without an answer."""
    began = answered = clock()
    num_told = num_leaving = 0
    is_known = False
    while True:
        try:
            num_leaving, is_known = head.num_leaving(), True
            answered = clock()
        except NoAnswer:
            is_known = False
            if clock() - answered >= ANSWERED_WITHIN_S:
                raise
        if num_leaving and num_leaving != num_told:
            say(f"{count_of(num_leaving, 'node')} still to leave this cluster")
            num_told = num_leaving
        if is_known and not num_leaving and clock() - began >= min(NOTIFIED_WITHIN_S, seconds):
            break
        if clock() - began >= seconds:
            raise DeadlineExceeded(
                f"{count_of(num_leaving, 'node')} still here after {seconds:.0f} s; the head shuts "
                "down before them"
            )
        sleep(POLL_S)
    say("no node is leaving")


@dataclass(frozen=True, slots=True)
class RayNode:
    """The node that this process is on."""

    node_id: str
    gcs: GcsClient

    def announce(self, seconds: float) -> None:
        # What `ray drain-node` calls, without another interpreter's start.
        from ray.core.generated import autoscaler_pb2

        ends_ms = time.time_ns() // 1_000_000 + int(seconds * 1000)
        reason = autoscaler_pb2.DrainNodeReason.Value(REASON)  # type: ignore[attr-defined]
        with _answers():
            is_accepted, why = self.gcs.drain_node(
                self.node_id, reason, "its pod ends", ends_ms, timeout=CALL_S
            )
        if not is_accepted:
            raise Unavailable(f"Ray refused to drain this node: {why}")

    def num_actors(self) -> int:
        from ray.util.state import list_actors

        with _answers():
            here = list_actors(
                filters=[("state", "=", "ALIVE"), ("node_id", "=", self.node_id)],
                timeout=int(CALL_S),
            )
        return len(here)

    def num_leaving(self) -> int:
        with _answers():
            return len(set(self.gcs.get_draining_nodes(timeout=CALL_S)) - {self.node_id})


@contextmanager
def _answers() -> Iterator[None]:
    """Raises NoAnswer for Ray's errors of unanswered calls."""
    from ray.exceptions import RpcError
    from ray.util.state.exception import RayStateApiException

    try:
        yield
    except (RpcError, RayStateApiException, OSError) as error:
        raise NoAnswer(f"no answer from Ray's GCS: {error}") from error


@contextmanager
def own_node(end: Callable[[], object]) -> Iterator[RayNode]:
    """The local Ray node. Raises Unavailable where none runs. Calls `end`, to exit the process, if
    closing the connection hangs."""
    import ray
    from ray._raylet import GcsClient  # type: ignore[attr-defined]

    try:
        ray.init(address="auto", log_to_driver=False, logging_level=logging.ERROR)
    except ConnectionError as error:
        raise Unavailable(f"no Ray node runs here ({error}); nothing has to leave") from error
    try:
        context = ray.get_runtime_context()
        yield RayNode(context.get_node_id(), GcsClient(address=context.gcs_address))
    finally:
        with hard_limit(CLOSED_WITHIN_S, end):
            ray.shutdown()
