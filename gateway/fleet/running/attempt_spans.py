"""The spans of one generation's attempts.

    sought -> begun -> ended          looking for a replica, running, over
       `----> failed                  no replica was found

While one attempt goes on, a replica for the next one may be sought; the next span links to the one
before.
"""

from __future__ import annotations

from baton.core.tracing import NO_SPAN, Span, TraceContext
from baton.gateway.fleet.placement.placed import Placed


class AttemptSpans:
    def __init__(self, within: Span) -> None:
        """`within`: the generation's span, the parent."""
        self._within = within
        self._current = self._sought = self._placing = NO_SPAN

    def sought(self) -> None:
        """Begin the span of the next attempt."""
        self._sought.end()
        before = self._current.context
        self._sought = self._within.child(
            "attempt", "client", links=(before,) if before.traceparent else ()
        )
        self._placing = self._sought.child("place")

    @property
    def next_context(self) -> TraceContext:
        """The trace context for the replica that is given the next attempt."""
        return self._sought.context

    def begun(self, placed: Placed) -> None:
        if self._sought.is_recording:
            self._describe(placed, self._sought, self._placing)
        self._placing.end()
        self._current, self._sought = self._sought, NO_SPAN

    def failed(self, error: BaseException) -> None:
        """No place was found, or the search was given up."""
        self._placing.end(_said(error))
        self._sought.end(_said(error))

    def ended(self, error: str = "") -> None:
        """End the span of the current attempt."""
        self._current.end(error)

    def _describe(self, placed: Placed, attempt: Span, placing: Span) -> None:
        placement = placed.placement
        placing.set(
            {
                "baton.placement": placement.reason,
                "baton.prefill_candidates": tuple(one.replica_id for one in placement.prefill),
            }
        )
        attempt.set(
            {
                "baton.attempt": placed.number,
                "baton.decode_replica": placement.decode.replica_id,
            }
        )


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__
