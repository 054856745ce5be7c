"""A gateway's report to the planner: requests, queue and replicas' speeds.

    arrive --> waits --place--> open --end--> ended
                 '-----------------end------->        refused, cancelled or out of time

Counters only grow and readers take differences, so a lost or repeated report is harmless.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from baton.core.clock import Clock
from baton.core.ids import Epoch, RequestId
from baton.core.step_times import StepTimes

if TYPE_CHECKING:  # readers of reports need no links
    from baton.gateway.fleet.links.replica_link import ReplicaLink


@dataclass(frozen=True, slots=True)
class ReplicaSpeed:
    """A replica's step-time fit, by its last report to a gateway."""

    times: StepTimes
    age_s: float
    """Seconds since the last step that was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficReport:
    """One gateway's traffic since it started."""

    age_s: float
    """Seconds since it started."""
    num_arrived: int = 0
    """Requests, including refused ones; each choice counts."""
    arrived_tokens: int = 0
    """Prompt tokens of the requests that arrived."""
    num_placed: int = 0
    """Requests that were placed for the first time; the next counts are of the same ones."""
    computed_tokens: int = 0
    """Prompt tokens that no cache had when they were placed."""
    squared_computed_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens that some cache had when they were placed."""
    num_ended: int = 0
    """Ended requests that had a place."""
    output_tokens: int = 0
    """Output tokens of the requests that ended."""
    num_open: int = 0
    """Requests that have a place now; the next fields are also current values."""
    num_waiting: int = 0
    num_for_decode: int = 0
    """Waiting requests that no decode replica has room for; others wait for a prefill replica."""
    waiting_tokens: int = 0
    oldest_wait_s: float = 0.0
    speeds: Mapping[Epoch, ReplicaSpeed] = field(default_factory=dict)
    """Speeds by replica; those that have measured nothing are left out."""


@dataclass(slots=True)
class _Waiting:
    num_tokens: int
    since_s: float


class Traffic:
    """The traffic of one gateway. Belongs to its event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began_s = clock()
        self._waiting: dict[RequestId, _Waiting] = {}
        self._open: set[RequestId] = set()
        self._num_arrived = self._arrived_tokens = 0
        self._num_placed = self._computed_tokens = self._squared_computed_tokens = 0
        self._cached_tokens = 0
        self._num_ended = self._output_tokens = 0

    def arrive(self, request_id: RequestId, num_tokens: int) -> None:
        self._num_arrived += 1
        self._arrived_tokens += num_tokens
        self._waiting[request_id] = _Waiting(num_tokens, self._clock())

    def place(self, request_id: RequestId, num_computed: int) -> None:
        """A replica has the request; only its first placement counts."""
        waiting = self._waiting.pop(request_id, None)
        if waiting is None:
            return
        self._open.add(request_id)
        self._num_placed += 1
        self._computed_tokens += num_computed
        self._squared_computed_tokens += num_computed**2
        self._cached_tokens += max(waiting.num_tokens - num_computed, 0)

    def end(self, request_id: RequestId, num_output: int) -> None:
        """The request is over. Safe to repeat."""
        self._waiting.pop(request_id, None)
        if request_id in self._open:
            self._open.remove(request_id)
            self._num_ended += 1
            self._output_tokens += num_output

    def report(self, speeds: Mapping[Epoch, ReplicaSpeed], *, can_decode: bool) -> TrafficReport:
        """`can_decode`: whether any decode replica has room."""
        now, waiting = self._clock(), self._waiting.values()
        return TrafficReport(
            age_s=now - self._began_s,
            num_arrived=self._num_arrived,
            arrived_tokens=self._arrived_tokens,
            num_placed=self._num_placed,
            computed_tokens=self._computed_tokens,
            squared_computed_tokens=self._squared_computed_tokens,
            cached_tokens=self._cached_tokens,
            num_ended=self._num_ended,
            output_tokens=self._output_tokens,
            num_open=len(self._open),
            num_waiting=len(waiting),
            num_for_decode=0 if can_decode else len(waiting),
            waiting_tokens=sum(one.num_tokens for one in waiting),
            oldest_wait_s=max((now - one.since_s for one in waiting), default=0.0),
            speeds=speeds,
        )


def speeds_of(links: Iterable[ReplicaLink[Any]], now: float) -> dict[Epoch, ReplicaSpeed]:
    """The speeds of the replicas that have measured any step."""
    found: dict[Epoch, ReplicaSpeed] = {}
    for link in links:
        report, timed_at_s = link.capacity, link.capacity_report.timed_at_s
        times = None if report is None else report.step_times
        if times is not None and times.is_known and timed_at_s is not None:
            found[link.info.epoch] = ReplicaSpeed(times, times.age_s + now - timed_at_s)
    return found
