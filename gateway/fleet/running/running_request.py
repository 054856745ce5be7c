"""One running generation, over as many attempts as it needs.

    place -> attempt 1 -> tokens ... -> last update
               | replica lost, or it could not go on
    place -> attempt 2, given the tokens the client already has -> tokens ...
               | its replica drains, or is silent: it goes on there if it can while another replica
               | is looked for; a request leaves silent replicas at most twice
    switch -> attempt 3, which takes the KV along if it can -> tokens ... -> last update

Each token reaches the caller exactly once, whatever replicas come and go. Sampling is a function of
(seed, choice, position), so a continuation elsewhere draws what the first replica would have drawn.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Protocol

from baton.core.clock import Clock
from baton.core.errors import (
    BatonError,
    Cancelled,
    DeadlineExceeded,
    Overloaded,
    StreamMoved,
    Unavailable,
)
from baton.core.ids import Epoch
from baton.core.messages import GenerateRequest, Receipt, TokenUpdate
from baton.core.replicas import ReplicaAddress
from baton.core.wording import count_of
from baton.gateway.fleet.links.decode_link import ReplicaLost
from baton.gateway.fleet.placement.placed import Placed
from baton.gateway.fleet.running.accounts import Accounts
from baton.gateway.fleet.running.attempt_spans import AttemptSpans
from baton.gateway.requests.generations.generation import Generation

MAX_ATTEMPTS = 5
"""Failed attempts: a request that crashes its replicas must not crash all of them."""
MAX_SILENT_MOVES = 2
"""Moves away from silent replicas: each computes the request anew, and where all stall at times the
next is no better."""
LOOK_AGAIN_S = 0.5
"""Seconds until another search after a place elsewhere was not found."""


class Place(Protocol):
    async def __call__(
        self,
        next_request: Callable[[], GenerateRequest],
        on_placed: Callable[[Placed], None],
        lost: frozenset[Epoch],
        time_left_s: float | None,
    ) -> None:
        """Wait for a place, in turn. `lost`: replicas on which an earlier attempt failed.
        `next_request` is called for each try of a place, and its errors are raised; `on_placed` is
        called synchronously as soon as the attempt is opened.
        """


class _Switched(BatonError):
    """Wakes the reader of an attempt: the request continues on another."""


class _StaysHere(BatonError):
    """A request that was to move has ended, or lost its replica, meanwhile."""


def first_request(generation: Generation) -> GenerateRequest:
    """The request of the first attempt."""
    return GenerateRequest(
        request_id=generation.request_id,
        attempt=1,
        prompt=generation.prompt,
        sampling=generation.sampling,
        salt=generation.salt,
        adapter=generation.adapter,
        tenant=generation.tenant,
        cache_points=generation.cache_points,
        priority=generation.priority,
        pooling=generation.pooling,
        parking=generation.parking,
    )


class RunningRequest:
    """Begins with `place`; iterated once; `stop` always follows."""

    def __init__(
        self,
        generation: Generation,
        place: Place,
        clock: Clock,
        charge: Callable[[int], None],
        on_end: Callable[[int], None],
    ) -> None:
        """`charge` is called with tokens computed for it, `on_end` with its number of output
        tokens."""
        self._generation = generation
        self._find_place = place
        self._charge = charge
        self._on_end = on_end
        self._clock = clock
        self._spans = AttemptSpans(generation.call.span)
        limit = generation.time_left_s
        self._deadline = None if limit is None else clock() + limit
        self._alarm: asyncio.TimerHandle | None = None
        self._output = list(generation.known_output)
        self._accounts = Accounts(len(generation.prompt))
        self._placed: Placed | None = None
        self._num_failed = 0
        self._num_silent_moves = 0
        self._lost: frozenset[Epoch] = frozenset()
        self._taken: deque[TokenUpdate] = deque()
        """Updates of the previous attempt that the reader has not taken yet."""
        self._moving: asyncio.Task[None] | None = None
        self._left: list[tuple[Placed, int, int]] = []
        """Attempts kept for their KV until the next one has begun: each with the tokens before it,
        and its own tokens."""

    @property
    def receipt(self) -> Receipt:
        return self._accounts.receipt

    async def place(self) -> None:
        """Begin the next attempt. Raises Overloaded, Unavailable, DeadlineExceeded."""
        started = self._clock()
        self._spans.sought()
        try:
            await self._find_place(self._next_request, self._begin, self._lost, self._time_left_s())
        except BaseException as error:
            self._spans.failed(error)
            raise
        self._accounts.waited((self._clock() - started) * 1e3)
        self._set_alarm()

    async def __aiter__(self) -> AsyncIterator[TokenUpdate]:
        while True:
            try:
                update = await self._next_update()
            except _Switched:
                continue
            except StreamMoved:
                raise
            except (ReplicaLost, Unavailable, Overloaded, Cancelled) as error:
                await self._place_again(error)
                continue
            if update.tokens or update.finish_reason is not None:
                yield update
            if update.is_last:
                return

    async def stop(self, num_delivered: int, *, is_finished: bool = False) -> None:
        """Cancel the request if it is not over. `num_delivered` counts over all attempts."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._on_end(len(self._output))
        await self._stop_moving()
        self._close_left(num_delivered)
        if self._placed is not None:
            num_of_attempt = max(0, num_delivered - self._accounts.num_before)
            self._placed.close(num_of_attempt, is_finished=is_finished)
        self._spans.ended()

    def _next_request(self) -> GenerateRequest:
        return self._request(self._left[-1][0].address if self._left else None)

    def _request(self, source: ReplicaAddress | None) -> GenerateRequest:
        """The request of the next attempt. `source`: the replica that still holds the previous
        one."""
        time_left_s = self._time_left_s()
        return replace(
            first_request(self._generation),
            attempt=self._accounts.number + 1,
            output=tuple(self._output),
            source=source,
            is_moving=source is not None,
            trace=self._spans.next_context,
            time_left_ms=None if time_left_s is None else max(1, int(time_left_s * 1e3)),
        )

    def _begin(self, placed: Placed) -> None:
        self._placed = placed
        placed.attempt.on_leaving = self._begin_to_move
        if placed.number == 1:  # the caller is not charged for recomputation
            self._charge(placed.placement.num_prefill_tokens)
        self._spans.begun(placed)
        self._accounts.begin_attempt(placed.number, placed.placement.reason)

    async def _next_update(self) -> TokenUpdate:
        if self._taken:
            return self._taken.popleft()
        placed = self._placed
        assert placed is not None
        try:
            update = await placed.attempt.next()
        except DeadlineExceeded as late:
            raise DeadlineExceeded(f"{late} after {count_of(len(self._output), 'token')}") from None
        self._take(placed, update)
        if update.error is not None:
            raise update.error
        self._close_left(len(self._output))
        return update

    def _take(self, placed: Placed, update: TokenUpdate) -> None:
        """Take an update: its tokens are final, and any later attempt continues after them."""
        self._accounts.observe(update.receipt, len(update.tokens))
        if update.is_last and update.receipt is not None:
            placed.observe(update.receipt)
        if update.tokens:
            placed.deliver(len(update.tokens))
            self._charge(len(update.tokens))
            self._output.extend(update.tokens)

    async def _place_again(self, error: Exception) -> None:
        """Account for the attempt that failed, then place the rest of the request."""
        await self._stop_moving()
        assert self._placed is not None
        self._placed.close(self._accounts.num_of_attempt)
        self._lost |= {self._placed.placement.decode.epoch}
        self._num_failed += 1
        number = self._accounts.number
        if self._num_failed >= MAX_ATTEMPTS:
            raise Unavailable(f"gave up after {number} attempts; the last said: {error}")
        self._spans.ended(str(error))
        self._accounts.end_attempt(f"attempt {number}: {error}")
        await self.place()

    # Moving: the current attempt runs until the next one is opened.

    def _begin_to_move(self) -> None:
        assert self._placed is not None
        is_moving = self._moving is not None and not self._moving.done()
        if not is_moving and self._can_move(self._placed):
            self._moving = asyncio.create_task(self._move(self._placed))

    def _can_move(self, old: Placed) -> bool:
        link = old.attempt.link
        if self._placed is not old or not old.attempt.can_move:
            return False
        if link.is_silent:
            return link.is_draining or self._num_silent_moves < MAX_SILENT_MOVES
        is_read_there = self._generation.pooling is not None or (
            self._generation.sampling.num_prompt_logprobs is not None and not self._output
        )
        return not is_read_there  # it computes what no KV contains: it ends there, or starts anew

    async def _move(self, old: Placed) -> None:
        """Look for a place elsewhere while there is a reason to move."""

        def request_to_move() -> GenerateRequest:
            if not self._can_move(old):
                raise _StaysHere
            for update in old.attempt.take_queued():
                self._take(old, update)
                self._taken.append(update)
            if self._taken:
                old.attempt.put(_Switched())  # what was taken is not to be waited for there
            is_silent = old.attempt.link.is_silent  # it could not be asked for the KV
            return self._request(None if is_silent else old.address)

        def switch(placed: Placed) -> None:
            self._switch(old, placed)

        while self._can_move(old):
            self._spans.sought()
            try:
                await self._find_place(request_to_move, switch, self._lost, self._time_left_s())
            except (Overloaded, Unavailable) as error:  # nobody takes it: somebody may later
                self._spans.failed(error)
                await asyncio.sleep(LOOK_AGAIN_S)
            except BatonError as error:
                self._spans.failed(error)
                return
            except asyncio.CancelledError as error:
                self._spans.failed(error)
                raise

    def _switch(self, old: Placed, placed: Placed) -> None:
        decode, num_before = old.placement.decode, self._accounts.num_before
        num_tokens, number = self._accounts.num_of_attempt, self._accounts.number
        takes_along = placed.attempt.request.is_moving
        why = "is draining" if takes_along else "answers nobody"
        self._accounts.end_attempt(f"attempt {number}: {decode.replica_id} {why}")
        self._spans.ended()
        old.attempt.cut_off(_Switched())
        self._begin(placed)
        if takes_along:
            self._left.append((old, num_before, num_tokens))
        else:
            self._num_silent_moves += 1
            self._lost |= {decode.epoch}
            old.close(num_tokens)

    async def _stop_moving(self) -> None:
        """Stop looking for a place elsewhere."""
        if self._moving is not None:
            self._moving.cancel()
            await asyncio.gather(self._moving, return_exceptions=True)
            self._moving = None

    def _close_left(self, num_delivered: int) -> None:
        """Close the attempts that it moved from: the current one has begun, or the request is
        over."""
        left, self._left = self._left, []
        for placed, num_before, num_tokens in left:
            placed.close(min(num_tokens, max(0, num_delivered - num_before)))

    def _time_left_s(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - self._clock())

    def _set_alarm(self) -> None:
        """Set one timer for the attempt: a timeout around each token would cost more than the
        token."""
        if self._alarm is not None:
            self._alarm.cancel()
        time_left_s = self._time_left_s()
        if time_left_s is not None:
            self._alarm = asyncio.get_running_loop().call_later(time_left_s, self._ring)

    def _ring(self) -> None:
        """The deadline passed: the reader receives the error after the tokens that came in time."""
        assert self._placed is not None
        self._placed.attempt.put(DeadlineExceeded("the request's time limit passed"))
