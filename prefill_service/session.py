"""One gateway's stream, on the prefill replica: the capacity that has yet to be reported to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from baton.core.ids import Epoch
from baton.core.replicas import Capacity
from baton.core.step_times import StepTimes
from baton.replica_core.capacity_reporter import CapacityReporter


class PrefillSession:
    def __init__(self, gateway_epoch: Epoch, step_times: Callable[[], StepTimes]) -> None:
        self.gateway_epoch = gateway_epoch
        self._due = asyncio.Event()
        self._capacity = CapacityReporter(self._due.set, step_times)
        self._is_ending = False

    def put_capacity(self, capacity: Capacity) -> None:
        self._capacity.put(capacity)

    def end(self) -> None:
        """Nothing more is sent. Safe to repeat."""
        self._is_ending = True
        self._due.set()

    def close(self) -> None:
        """The stream is gone."""
        self._capacity.close()

    async def next_capacity(self) -> Capacity | None:
        """None when the session has ended."""
        while not self._is_ending:
            await self._due.wait()
            if not self._is_ending:
                self._due.clear()
            if (news := self._capacity.take()) is not None:
                return news
        return None
