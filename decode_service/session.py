"""One gateway's stream, seen from the decode replica: the updates that wait to be sent to it.

Updates accumulate while the stream is busy and leave together in one frame, those of one request as
one update: back-pressure makes tokens cheaper, and no token waits for a timer. The logprobs of a
prompt are the exception: only those of one prompt are sure to fit a message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from baton.core.ids import Epoch, RequestId
from baton.core.messages import TokenUpdate
from baton.core.replicas import Capacity
from baton.core.step_times import StepTimes
from baton.replica_core.capacity_reporter import CapacityReporter


@dataclass(frozen=True, slots=True)
class Frame:
    updates: tuple[TokenUpdate, ...]
    capacity: Capacity | None
    """None if the gateway has it already."""


def _no_step_times() -> None:
    """The step times of a session without an engine: none."""


class GatewaySession:
    def __init__(
        self,
        gateway_epoch: Epoch,
        step_times: Callable[[], StepTimes | None] = _no_step_times,
    ) -> None:
        self.gateway_epoch = gateway_epoch
        self.is_closed = False
        self.num_open = 0
        """Requests of it that are open here."""
        self._updates: dict[tuple[RequestId, int], TokenUpdate] = {}
        """Unsent updates by (request, attempt), in the order in which they began to wait."""
        self._errors: list[TokenUpdate] = []
        """Sent behind all tokens."""
        self._pending = asyncio.Event()
        self._capacity = CapacityReporter(self._pending.set, step_times)
        self._is_ending = False

    def put(self, update: TokenUpdate) -> None:
        if self.is_closed:
            return
        if update.error is not None:
            self._errors.append(update)
        else:
            key = update.request_id, update.attempt
            before = self._updates.get(key)
            self._updates[key] = update if before is None else before.and_then(update)
        self._pending.set()

    def put_capacity(self, capacity: Capacity) -> None:
        self._capacity.put(capacity)

    def close(self) -> None:
        """The stream is gone. Safe to repeat."""
        self.is_closed = True
        self._capacity.close()

    def end(self) -> None:
        """Send what is pending, then nothing more. Safe to repeat."""
        self._is_ending = True
        self._pending.set()

    async def next_frame(self) -> Frame | None:
        """None when the session has ended."""
        await self._pending.wait()
        if self._is_ending and not (self._updates or self._errors):
            return None
        updates = self._next_updates()
        if not (self._is_ending or self._updates or self._errors):
            self._pending.clear()
        return Frame(updates, self._capacity.take())

    def _next_updates(self) -> tuple[TokenUpdate, ...]:
        """All that wait; but one with a prompt's logprobs, as long as a message may be, alone."""
        updates: list[TokenUpdate] = []
        for key, update in list(self._updates.items()):
            if update.prompt_logprobs and updates:
                return tuple(updates)
            updates.append(self._updates.pop(key))
            if update.prompt_logprobs:
                return tuple(updates)
        updates += self._errors
        self._errors = []
        return tuple(updates)
