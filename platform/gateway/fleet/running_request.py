"""One generation under way, over as many attempts as it needs.

    place -> attempt 1 -> tokens ... -> last update
               | replica lost, or it could not go on
    place -> attempt 2, given the tokens the client already has -> tokens ... -> last update

Each token reaches the caller exactly once, whatever replicas come and go. Sampling is a function of
(seed, choice, position), so a continuation elsewhere draws what the lost replica would have drawn.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Protocol

from baton.core.clock import Clock
from baton.core.errors import Cancelled, DeadlineExceeded, Overloaded, Unavailable
from baton.core.ids import Epoch
from baton.core.messages import GenerateRequest, Receipt, TokenUpdate
from baton.platform.gateway.fleet.placed import Placed
from baton.platform.gateway.fleet.replica_link import ReplicaLost
from baton.platform.gateway.generation import Generation

MAX_ATTEMPTS = 5
"""A request that takes down every replica it meets must not take them all."""


class Place(Protocol):
    async def __call__(
        self, request: GenerateRequest, lost: frozenset[Epoch], time_left_s: float | None
    ) -> Placed:
        """Wait for a place, in turn. `lost`: replicas on which an earlier attempt failed."""


class RunningRequest:
    """Begins with `place`; iterated once; `stop` always follows."""

    def __init__(self, generation: Generation, place: Place, clock: Clock) -> None:
        self._generation = generation
        self._find_place = place
        self._clock = clock
        limit = generation.time_left_s
        self._deadline = None if limit is None else clock() + limit
        self._alarm: asyncio.TimerHandle | None = None
        self._output: list[int] = []
        self._num_before = 0
        """Output tokens from earlier attempts than the current one."""
        self._placed: Placed | None = None
        self._number = 0
        self._lost: frozenset[Epoch] = frozenset()
        self._spent = Receipt()
        """What the attempts before this one used."""
        self._current = Receipt()
        self._placement = ""
        self._queue_ms = 0.0

    @property
    def receipt(self) -> Receipt:
        spent, current = self._spent, self._current
        return replace(
            current,
            placement=self._placement,
            attempts=max(self._number, 1),
            prompt_tokens=len(self._generation.prompt),
            # The attempt that gave the first token has answered for the prompt.
            cached_tokens=(spent if self._num_before else current).cached_tokens,
            computed_tokens=spent.computed_tokens + current.computed_tokens + self._num_unreported,
            output_tokens=len(self._output),
            kv_bytes=spent.kv_bytes + current.kv_bytes,
            queue_ms=_to_us(self._queue_ms + spent.queue_ms + current.queue_ms),
            prefill_ms=_to_us(spent.prefill_ms + current.prefill_ms),
            transfer_ms=_to_us(spent.transfer_ms + current.transfer_ms),
            decode_ms=_to_us(spent.decode_ms + current.decode_ms),
            notes=spent.notes + current.notes,
        )

    @property
    def _num_unreported(self) -> int:
        """Output tokens of this attempt after its last receipt; one more was run for each."""
        return max(0, len(self._output) - self._num_before - self._current.output_tokens)

    async def place(self) -> None:
        """Begin the next attempt. Raises Overloaded, Unavailable, DeadlineExceeded."""
        started = self._clock()
        self._number += 1
        self._num_before = len(self._output)
        self._placed = await self._find_place(self._next_request(), self._lost, self._time_left_s())
        self._placement = self._placed.placement.reason
        self._queue_ms += (self._clock() - started) * 1e3
        self._set_alarm()

    async def __aiter__(self) -> AsyncIterator[TokenUpdate]:
        while True:
            try:
                update = await self._next_update()
            except (ReplicaLost, Unavailable, Overloaded, Cancelled) as error:
                await self._place_again(error)
                continue
            if update.tokens or update.finish_reason is not None:
                yield update
            if update.is_last:
                return

    async def stop(self, num_delivered: int) -> None:
        """Take the request back if it is not over. `num_delivered` counts over all attempts."""
        if self._alarm is not None:
            self._alarm.cancel()
        if self._placed is not None:
            self._placed.close(max(0, num_delivered - self._num_before))

    def _next_request(self) -> GenerateRequest:
        generation, time_left_s = self._generation, self._time_left_s()
        return GenerateRequest(
            request_id=generation.request_id,
            attempt=self._number,
            prompt=generation.prompt,
            output=tuple(self._output),
            sampling=generation.sampling,
            salt=generation.salt,
            priority=generation.priority,
            pooling=generation.pooling,
            time_left_ms=None if time_left_s is None else max(1, int(time_left_s * 1e3)),
        )

    async def _next_update(self) -> TokenUpdate:
        assert self._placed is not None
        try:
            update = await self._placed.attempt.next()
        except DeadlineExceeded as late:
            raise DeadlineExceeded(f"{late} after {len(self._output)} tokens") from None
        if update.receipt is not None:
            self._current = update.receipt
        if update.error is not None:
            raise update.error
        if update.tokens:
            self._placed.prefill_is_over()
            self._output.extend(update.tokens)
        return update

    async def _place_again(self, error: Exception) -> None:
        """Account for the attempt that failed, then place the rest of the request."""
        assert self._placed is not None
        self._placed.close(len(self._output) - self._num_before)
        self._lost |= {self._placed.placement.decode.epoch}
        if self._number >= MAX_ATTEMPTS:
            raise Unavailable(f"gave up after {self._number} attempts; the last said: {error}")
        receipt = self.receipt
        self._spent = replace(receipt, notes=(*receipt.notes, f"attempt {self._number}: {error}"))
        self._current = Receipt()
        self._queue_ms = 0.0
        await self.place()

    def _time_left_s(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - self._clock())

    def _set_alarm(self) -> None:
        """One timer an attempt: a time limit around each token would cost more than the token."""
        if self._alarm is not None:
            self._alarm.cancel()
        time_left_s = self._time_left_s()
        if time_left_s is not None:
            self._alarm = asyncio.get_running_loop().call_later(time_left_s, self._ring)

    def _ring(self) -> None:
        """Whoever waits for more hears this after the tokens that came in time."""
        assert self._placed is not None
        self._placed.attempt.put(DeadlineExceeded("the request's time limit passed"))


def _to_us(milliseconds: float) -> float:
    """Rounded to microseconds: people read receipts, and further digits are noise."""
    return round(milliseconds, 3)
