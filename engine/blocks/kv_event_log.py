r"""The last changes of a prefix cache, numbered, for its followers.

    stored, evicted, cleared  ->  pending  --flush-->  log  --read(sequence)-->  followers
                                                        \-- the oldest are forgotten

The owner's thread records and flushes, once a step or so; `read` may be called on any thread. A
follower that asks for events that are forgotten already starts over from a snapshot, so memory is
bounded however slow it is.
"""

from __future__ import annotations

import threading
from collections import deque

from baton.core.block_hash import DIGEST_BYTES
from baton.core.kv_events import KvChange, KvEvent, KvEvents

MAX_NAMES = 65_536
MAX_READ = 4096
"""Names, or one event, that a reader is given at once: less than a millisecond to take in."""


class KvEventLog:
    def __init__(self, max_names: int = MAX_NAMES) -> None:
        self._max_weight = max_names
        self._pending: list[tuple[KvChange, list[bytes]]] = []
        self._events: deque[KvEvent] = deque()
        self._weight = 0
        self._next_sequence = 1
        self._lock = threading.Lock()

    @property
    def next_sequence(self) -> int:
        """The sequence number of the event that the next flush begins with."""
        return self._next_sequence

    def stored(self, name: bytes) -> None:
        self._record(KvChange.STORED, name)

    def evicted(self, name: bytes) -> None:
        self._record(KvChange.EVICTED, name)

    def cleared(self) -> None:
        self._pending = [(KvChange.CLEARED, [])]  # whatever was pending is undone by it

    def flush(self) -> bool:
        """Make readable what was recorded since the last flush; False if that was nothing."""
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
        """What happened from event `sequence` on, or the beginning of it, if it is much; None if
        some of that is forgotten."""
        events: list[KvEvent] = []
        weight = 0
        with self._lock:
            num_events = self._next_sequence - sequence
            if not 0 <= num_events <= len(self._events):
                return None
            # From the end: what a follower lacks is short, what is kept is long.
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
