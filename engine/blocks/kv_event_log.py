r"""A numbered log of the last changes of a prefix cache, for its followers.

    stored, evicted, cleared  ->  pending  --flush-->  log  --read(sequence)-->  followers
                                                        \-- the oldest are dropped

The engine's thread records changes and flushes them about once per step; `read` may be called on
any thread. A follower that asks for events that were dropped already must start over from a
snapshot, so the log's memory is bounded however slow a follower is.
"""

from __future__ import annotations

import threading
from collections import deque

from baton.core.block_hash import DIGEST_BYTES
from baton.core.kv_events import KvChange, KvEvent, KvEvents

MAX_NAMES = 65_536
"""Default size of the log, in names plus events."""
MAX_READ = 4096
"""A read ends with the event that reaches this many names plus events, which takes a follower less
than a millisecond to apply."""


class KvEventLog:
    """The log of one cache. `read` is thread-safe; all else belongs to the engine's thread."""

    def __init__(self, max_names: int = MAX_NAMES) -> None:
        self._max_weight = max_names
        self._pending: list[tuple[KvChange, list[bytes]]] = []
        self._events: deque[KvEvent] = deque()
        self._weight = 0
        self._next_sequence = 1
        self._lock = threading.Lock()

    @property
    def next_sequence(self) -> int:
        """The sequence number of the first event of the next flush."""
        return self._next_sequence

    def stored(self, name: bytes) -> None:
        self._record(KvChange.STORED, name)

    def evicted(self, name: bytes) -> None:
        self._record(KvChange.EVICTED, name)

    def cleared(self) -> None:
        self._pending = [(KvChange.CLEARED, [])]  # replaces pending changes, which it undoes

    def flush(self) -> bool:
        """Append what was recorded since the last flush to the log. Returns False if that was
        nothing."""
        if not self._pending:
            return False
        events = [KvEvent(change, b"".join(names)) for change, names in self._pending]
        self._pending = []
        with self._lock:
            self._events.extend(events)
            self._next_sequence += len(events)
            self._weight += sum(map(_weight, events))
            while self._weight > self._max_weight:
                self._weight -= _weight(self._events.popleft())
        return True

    def read(self, sequence: int) -> KvEvents | None:
        """The events from number `sequence` on, at most about `MAX_READ` names of them; None if
        some of them were dropped already or `sequence` is in the future."""
        events: list[KvEvent] = []
        weight = 0
        with self._lock:
            num_events = self._next_sequence - sequence
            if not 0 <= num_events <= len(self._events):
                return None
            # Indexed from the end, because a deque is slow in the middle and followers lack little.
            for back in range(num_events, 0, -1):
                events.append(self._events[-back])
                weight += _weight(events[-1])
                if weight >= MAX_READ:
                    break
        return KvEvents(first_sequence=sequence, events=tuple(events))

    def _record(self, change: KvChange, name: bytes) -> None:
        if self._pending and self._pending[-1][0] is change:
            self._pending[-1][1].append(name)
        else:
            self._pending.append((change, [name]))


def _weight(event: KvEvent) -> int:
    return 1 + len(event.names) // DIGEST_BYTES
