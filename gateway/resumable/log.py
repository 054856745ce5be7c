"""The events of a resumable stream, numbered, so that they can be sent again.

    event 1 | event 2 | ... | event k | event k+1 | ... | event n
    <----- forgotten ------> <------------ kept ------------>       last_sequence = n

    OPEN -> CLOSED  its last event has been written
         -> FAILED  it broke; readers get the events, then the error

A reader is a number, its last event: the events after it are the same for all readers.
"""

from __future__ import annotations

from collections import deque

EVENT_COST_BYTES = 64
"""Memory overhead of an event."""


class StreamLog:
    def __init__(self) -> None:
        self._events: deque[bytes] = deque()
        self._num_forgotten = 0
        self._is_closed = False
        self.failure: Exception | None = None
        self.num_bytes = 0
        """Bytes of the kept events, with overhead."""

    @property
    def last_sequence(self) -> int:
        """0 while there is no event."""
        return self._num_forgotten + len(self._events)

    @property
    def is_ended(self) -> bool:
        return self._is_closed or self.failure is not None

    def append(self, event: bytes) -> int:
        """The event's number, from 1."""
        assert not self.is_ended, "nothing follows the last event"
        self._events.append(event)
        self.num_bytes += cost_of(event)
        return self.last_sequence

    def close(self) -> None:
        assert not self.is_ended, "a log ends once"
        self._is_closed = True

    def fail(self, error: Exception) -> None:
        assert not self.is_ended, "a log ends once"
        self.failure = error

    def holds_after(self, sequence: int) -> bool:
        """Whether all events after `sequence` are still kept."""
        return self._num_forgotten <= sequence <= self.last_sequence

    def event(self, sequence: int) -> bytes:
        assert self._num_forgotten < sequence <= self.last_sequence, "no such event is kept"
        return self._events[sequence - self._num_forgotten - 1]

    def forget_through(self, sequence: int) -> None:
        """Forget the events up to this one."""
        while self._events and self._num_forgotten < sequence:
            self.num_bytes -= cost_of(self._events.popleft())
            self._num_forgotten += 1


def cost_of(event: bytes) -> int:
    return len(event) + EVENT_COST_BYTES
