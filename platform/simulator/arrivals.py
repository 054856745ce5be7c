"""Arrivals: requests at their times, or a session's next turn once it has its last answer.

open loop     arrivals as the trace has them, whatever becomes of them
closed loop   answer to turn n  -- gap -->  turn n + 1
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import NamedTuple

from baton.platform.traces.trace import Trace, TraceRequest


class Arrival(NamedTuple):
    at_s: float
    place: int
    """Tie-break among arrivals at one time: the lower goes first."""
    request: TraceRequest
    following: Iterator[TraceRequest]
    """The turns of its session that come after it."""
    is_first_turn: bool = False


class Arrivals:
    def __init__(self, trace: Trace) -> None:
        self._places = count()
        self._pending: list[Arrival] = []
        if trace.is_closed_loop:
            for turns in trace.sessions().values():
                self._expect(0.0, iter(turns), is_first_turn=True)
        else:
            self._pending = [
                Arrival(request.arrival_s or 0.0, next(self._places), request, iter(()))
                for request in trace.requests  # in order, so that they are a heap
            ]

    @property
    def next_s(self) -> float:
        """Time of the next arrival; infinite if none is expected."""
        return self._pending[0].at_s if self._pending else inf

    def pop(self) -> Arrival:
        return heappop(self._pending)

    def answered(self, arrival: Arrival, at_s: float) -> None:
        """The arrival has its whole answer, or was rejected: its session continues."""
        self._expect(at_s, arrival.following)

    def _expect(
        self, since_s: float, turns: Iterator[TraceRequest], *, is_first_turn: bool = False
    ) -> None:
        turn = next(turns, None)
        if turn is not None:
            at_s = since_s + turn.gap_s
            heappush(self._pending, Arrival(at_s, next(self._places), turn, turns, is_first_turn))
