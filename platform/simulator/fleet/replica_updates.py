"""Reports of a replica's capacity and cache to gateways, as late as those of a live replica.

changes of credit     sent at once
anything else         with the next report, at most `COALESCE_S` later
changes of blocks     when the step that changed them is over
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from baton.core.ids import Epoch
from baton.core.kv_events import KvChange, KvEvent, KvEvents
from baton.core.replicas import Capacity, ReplicaInfo
from baton.engine.blocks.block_pool import BlockPool
from baton.engine.blocks.kv_event_log import KvEventLog
from baton.platform.simulator.fleet.event_queue import EventQueue
from baton.replica_core.capacity_reporter import COALESCE_S


class Listener(Protocol):
    """A gateway."""

    def observe(self, epoch: Epoch, capacity: Capacity) -> None: ...

    def on_kv_events(self, epoch: Epoch, events: KvEvents) -> None: ...


class _Subscriber:
    """The state that was reported to one gateway."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.told: Capacity | None = None
        self.current: Capacity | None = None
        self.is_word_due = False


class ReplicaUpdates:
    def __init__(self, info: ReplicaInfo, event_queue: EventQueue, latency_s: float) -> None:
        self._epoch = info.epoch
        self._subscriber_by_gateway: dict[int, _Subscriber] = {}
        self._event_queue = event_queue
        self._latency_s = latency_s
        self._next_sequence = 1

    @property
    def gateways(self) -> Collection[int]:
        """Numbers of those who listen."""
        return self._subscriber_by_gateway.keys()

    def join(self, number: int, gateway: Listener, pool: BlockPool, log: KvEventLog) -> None:
        """Report changes to it from now on; of the present cache it gets a snapshot."""
        self.report_kv_events(log)
        names = KvEvent(KvChange.STORED, b"".join(pool.prefixes.names()))
        gateway.on_kv_events(
            self._epoch,
            KvEvents(first_sequence=self._next_sequence, events=(names,), is_snapshot=True),
        )
        self._subscriber_by_gateway[number] = _Subscriber(gateway)

    def leave(self, number: int) -> None:
        del self._subscriber_by_gateway[number]

    def tell(self, capacity_by_gateway: Mapping[int, Capacity]) -> None:
        """One for each gateway that listens, with what that is lent."""
        for gateway, capacity in capacity_by_gateway.items():
            subscriber = self._subscriber_by_gateway[gateway]
            subscriber.current = capacity
            if subscriber.told is None or subscriber.told.credit_id != capacity.credit_id:
                self._say(subscriber)
            elif not subscriber.is_word_due and capacity != subscriber.told:
                subscriber.is_word_due = True
                self._event_queue.after(COALESCE_S, self._due(subscriber))

    def report_kv_events(self, log: KvEventLog) -> None:
        if not log.flush():
            return
        events = log.read(self._next_sequence)
        while events is not None and events.events:
            for subscriber in self._subscriber_by_gateway.values():
                self._event_queue.after(self._latency_s, self._heard(subscriber, events))
            self._next_sequence = events.next_sequence
            events = log.read(self._next_sequence)
        assert events is not None, "each step is reported: nothing is forgotten before"

    def _due(self, subscriber: _Subscriber) -> Callable[[], None]:
        def say() -> None:
            subscriber.is_word_due = False
            if subscriber.current != subscriber.told:
                self._say(subscriber)

        return say

    def _say(self, subscriber: _Subscriber) -> None:
        capacity = subscriber.told = subscriber.current
        assert capacity is not None
        self._event_queue.after(
            self._latency_s, lambda: subscriber.listener.observe(self._epoch, capacity)
        )

    def _heard(self, subscriber: _Subscriber, events: KvEvents) -> Callable[[], None]:
        return lambda: subscriber.listener.on_kv_events(self._epoch, events)
