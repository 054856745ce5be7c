"""A node of Ray leaves: its replicas come up elsewhere, and drain, before its pod ends.

told                        Ray places nothing more there; Serve starts replacements elsewhere
they run, or time is short  Serve stops the node's replicas, and each drains: requests move with
                            their KV
no actor is left            the node may go

A whole cluster ends pod by pod, at the same time: its head, without which nobody drains, stays
until the others have gone.

Ray's GCS may hang meanwhile, or be gone. A call that it does not answer is made again: by a
worker's node as long as it has time, since a GCS can come back; by the head for a few seconds, as
it helps nobody without one. What hangs inside of Ray ends with the process.
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

if TYPE_CHECKING:
    from ray._raylet import GcsClient  # type: ignore[attr-defined]

POLL_S = 0.5
REASON = "DRAIN_NODE_REASON_PREEMPTION"
"""The one that Ray never declines."""
TOLD_WITHIN_S = 15.0
"""Seconds within which each of several pods that end together has told Ray: its command starts an
interpreter first."""
ANSWERED_WITHIN_S = 10.0
"""Seconds in which the head's own GCS must answer, or the head goes."""
CALL_S = 5.0
"""Seconds for one answer of Ray's."""
CLOSED_WITHIN_S = 2.0
"""The connection to Ray, which asks the GCS once more."""


class NoAnswer(Unavailable):
    """Ray's GCS did not answer, or is gone; safe to ask again."""


@contextmanager
def hard_limit(seconds: float, end: Callable[[], object]) -> Iterator[None]:
    """Calls `end`, on another thread, if the block takes longer: to leave the process, as nothing
    interrupts a call into Ray."""
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
        """Actors that are alive on the node. Raises NoAnswer."""


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
            left = f"{num_actors} processes are still on this node"
            if num_actors != num_told:
                say(f"{num_actors} processes have yet to leave this node")
                num_told = num_actors
        except NoAnswer as error:
            left = f"it is not known what is on this node ({error})"
        if clock() >= deadline:
            raise DeadlineExceeded(
                f"{left} after {seconds:.0f} s; its requests are placed again by the gateways"
            )
        sleep(POLL_S)
    say("nothing is left on this node")


class Head(Protocol):
    def num_leaving(self) -> int:
        """Other nodes that have been announced and still are there. Raises NoAnswer."""


def wait_for_others(
    head: Head,
    seconds: float,
    say: Callable[[str], None],
    clock: Clock = monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Returns when no node leaves any more; those that stay are not waited for. Raises
    DeadlineExceeded, or NoAnswer once it has asked in vain for ANSWERED_WITHIN_S."""
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
            say(f"{num_leaving} nodes have yet to leave this cluster")
            num_told = num_leaving
        if is_known and not num_leaving and clock() - began >= min(TOLD_WITHIN_S, seconds):
            break
        if clock() - began >= seconds:
            raise DeadlineExceeded(
                f"{num_leaving} nodes have not left after {seconds:.0f} s; the head ends before "
                "them"
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
            raise Unavailable(f"Ray does not let this node leave: {why}")

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
    """Raises NoAnswer for what Ray raises of a call that had none."""
    from ray.exceptions import RpcError
    from ray.util.state.exception import RayStateApiException

    try:
        yield
    except (RpcError, RayStateApiException, OSError) as error:
        raise NoAnswer(f"no answer from Ray's GCS: {error}") from error


@contextmanager
def own_node(end: Callable[[], object]) -> Iterator[RayNode]:
    """Raises Unavailable where no Ray node runs. Calls `end`, to leave the process, if Ray does not
    let go of it afterwards."""
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
