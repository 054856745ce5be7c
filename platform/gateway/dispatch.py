"""Takes a generation to the replicas and back, over as many attempts as it needs.

    place -> attempt 1 -> tokens ... -> last update
               | replica lost, or it could not go on
    place -> attempt 2, given the tokens the client already has -> tokens ... -> last update

Each token reaches the caller exactly once, whatever replicas come and go. Sampling is a function of
(seed, choice, position), so a continuation elsewhere draws what the lost replica would have drawn.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from baton.core.clock import Clock, monotonic
from baton.core.errors import Cancelled, DeadlineExceeded, Overloaded, Unavailable
from baton.core.ids import Epoch, new_epoch
from baton.core.messages import GenerateRequest, Receipt, TokenUpdate
from baton.platform.gateway.admission import AdmissionQueue
from baton.platform.gateway.fleet import Fleet, RegistryClient
from baton.platform.gateway.generation import Generation
from baton.platform.gateway.replica_link import Attempt, ReplicaLost
from baton.platform.observe.fleet_report import leaks_report, metrics_report, status_report
from baton.platform.router.policy import LeastWork, Placement, PlacementRequest

MAX_ATTEMPTS = 5
"""A request that takes down every replica it meets must not take them all."""


class ReplicaDispatcher:
    """The gateway's one dispatcher. `run` keeps it in touch with the registry."""

    def __init__(
        self,
        policy: LeastWork,
        *,
        max_waiting: int,
        no_replica_grace_s: float,
        clock: Clock = monotonic,
    ) -> None:
        self.epoch: Epoch = new_epoch()
        self._policy = policy
        self._no_replica_grace_s = no_replica_grace_s
        self._clock = clock
        self._queue: AdmissionQueue[tuple[Placement, Attempt]] = AdmissionQueue(max_waiting)
        self._patience: set[asyncio.Timeout] = set()
        """Of those who wait: it runs while no decode replica is connected."""
        self._was_connected = False
        self.fleet = Fleet(self.epoch, self._on_fleet_change)

    async def run(self, registry: RegistryClient) -> None:
        try:
            await self.fleet.follow(registry)
        finally:
            await self.fleet.close()

    async def start(self, generation: Generation) -> RunningRequest:
        """Return once the request has a place. Raises Overloaded, Unavailable, DeadlineExceeded."""
        running = RunningRequest(self, generation, self._clock)
        await running.place()
        return running

    @property
    def max_model_len(self) -> int:
        return min((link.info.max_model_len for link in self.fleet.connected), default=0)

    def is_ready(self) -> bool:
        return any(link.info.is_ready for link in self.fleet.connected)

    async def leaks(self) -> dict[str, Any]:
        return leaks_report(self.fleet.replicas, await self.fleet.inspect())

    async def status(self) -> dict[str, Any]:
        report = status_report(self.fleet.replicas, await self.fleet.inspect())
        return {**report, "num_waiting": len(self._queue)}

    async def metrics_text(self) -> str:
        return metrics_report(self.fleet.replicas, await self.fleet.inspect(timeout_s=1.0))

    async def place(
        self, request: GenerateRequest, lost: frozenset[Epoch], time_left_s: float | None
    ) -> tuple[Placement, Attempt]:
        """Wait for a place, in turn, and open an attempt there."""
        known = (*request.prompt, *request.output)
        hashes = self.fleet.hashes(known, request.salt)

        def try_place() -> tuple[Placement, Attempt] | None:
            return self._try_place(request, hashes, lost)

        try:
            async with asyncio.timeout(time_left_s), self._while_replicas_may_come():
                return await self._queue.place(
                    try_place, lambda placed: placed[1].close(0), is_retry=request.attempt > 1
                )
        except TimeoutError:
            raise DeadlineExceeded(
                f"no room on any decode replica within {time_left_s:.1f} s"
            ) from None

    @asynccontextmanager
    async def _while_replicas_may_come(self) -> AsyncIterator[None]:
        """Raises Unavailable once no decode replica has been connected for the grace period."""
        try:
            async with asyncio.timeout_at(self._patience_ends_at()) as patience:
                self._patience.add(patience)
                try:
                    yield
                finally:
                    self._patience.discard(patience)
        except TimeoutError:
            raise Unavailable("no decode replica is connected; see /debug/status") from None

    def _patience_ends_at(self) -> float | None:
        if self.fleet.connected:
            return None
        return asyncio.get_running_loop().time() + self._no_replica_grace_s

    def _on_fleet_change(self) -> None:
        is_connected = bool(self.fleet.connected)
        if is_connected != self._was_connected:
            self._was_connected = is_connected
            for patience in self._patience:
                if not patience.expired():
                    patience.reschedule(self._patience_ends_at())
        self._queue.wake()

    def _try_place(
        self, request: GenerateRequest, hashes: tuple[bytes, ...], lost: frozenset[Epoch]
    ) -> tuple[Placement, Attempt] | None:
        if not any(replica.is_open for replica in self.fleet.view(()).decode):
            return None  # most wakes come to this: do not look a long prompt up for nothing
        num_tokens = len(request.prompt) + len(request.output)
        placement = self._policy.place(
            PlacementRequest(num_tokens=num_tokens, lost=lost),
            self.fleet.view(hashes),
            self._clock(),
        )
        if placement is None:
            return None
        link = self.fleet.link(placement.decode.epoch)
        attempt = link.open(replace(request, prefill=placement.prefill))
        targets = [placement.decode.epoch, *(p.epoch for p in placement.prefill[:1])]
        self.fleet.remember(hashes, targets)
        return placement, attempt


class RunningRequest:
    """One generation under way, over all its attempts. Iterated once; `stop` always follows."""

    def __init__(self, dispatcher: ReplicaDispatcher, generation: Generation, clock: Clock) -> None:
        self._dispatcher = dispatcher
        self._generation = generation
        self._clock = clock
        limit = generation.time_left_s
        self._deadline = None if limit is None else clock() + limit
        self._output: list[int] = []
        self._num_before = 0
        """Output tokens from earlier attempts than the current one."""
        self._attempt: Attempt | None = None
        self._number = 0
        self._lost: frozenset[Epoch] = frozenset()
        self._prefill_on: tuple[Epoch, int] | None = None
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
            computed_tokens=spent.computed_tokens + current.computed_tokens + self._num_unreported,
            output_tokens=len(self._output),
            kv_bytes=spent.kv_bytes + current.kv_bytes,
            queue_ms=self._queue_ms + spent.queue_ms + current.queue_ms,
            prefill_ms=spent.prefill_ms + current.prefill_ms,
            transfer_ms=spent.transfer_ms + current.transfer_ms,
            decode_ms=spent.decode_ms + current.decode_ms,
            notes=spent.notes + current.notes,
        )

    @property
    def _num_unreported(self) -> int:
        """Output tokens of this attempt after its last receipt; one more was run for each."""
        return max(0, len(self._output) - self._num_before - self._current.output_tokens)

    async def place(self) -> None:
        started = self._clock()
        self._number += 1
        self._num_before = len(self._output)
        time_left_s = self._time_left_s()
        request = GenerateRequest(
            request_id=self._generation.request_id,
            attempt=self._number,
            prompt=self._generation.prompt,
            output=tuple(self._output),
            sampling=self._generation.sampling,
            salt=self._generation.salt,
            time_left_ms=None if time_left_s is None else max(1, int(time_left_s * 1e3)),
        )
        placement, self._attempt = await self._dispatcher.place(request, self._lost, time_left_s)
        self._placement = placement.reason
        self._queue_ms += (self._clock() - started) * 1e3
        if placement.prefill:
            num_tokens = len(request.prompt) + len(request.output)
            self._prefill_on = (placement.prefill[0].epoch, num_tokens)
            self._dispatcher.fleet.add_prefill_tokens(*self._prefill_on)

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
                self._remember_output()
                return

    async def stop(self, num_delivered: int) -> None:
        """Take the request back if it is not over. `num_delivered` counts over all attempts."""
        self._prefill_is_over()
        if self._attempt is not None:
            self._attempt.close(max(0, num_delivered - self._num_before))

    async def _next_update(self) -> TokenUpdate:
        assert self._attempt is not None
        try:
            async with asyncio.timeout(self._time_left_s()):
                update = await self._attempt.next()
        except TimeoutError:
            raise DeadlineExceeded(
                f"the request's time limit passed after {len(self._output)} tokens"
            ) from None
        if update.receipt is not None:
            self._current = update.receipt
        if update.error is not None:
            raise update.error
        if update.tokens:
            self._prefill_is_over()
            self._output.extend(update.tokens)
        return update

    async def _place_again(self, error: Exception) -> None:
        """Account for the attempt that failed, then place the rest of the request."""
        assert self._attempt is not None
        self._prefill_is_over()
        self._attempt.close(len(self._output) - self._num_before)
        self._lost |= {self._attempt.link.info.epoch}
        if self._number >= MAX_ATTEMPTS:
            raise Unavailable(f"gave up after {self._number} attempts; the last said: {error}")
        receipt = self.receipt
        self._spent = replace(receipt, notes=(*receipt.notes, f"attempt {self._number}: {error}"))
        self._current = Receipt()
        self._queue_ms = 0.0
        await self.place()

    def _prefill_is_over(self) -> None:
        if self._prefill_on is not None:
            epoch, num_tokens = self._prefill_on
            self._dispatcher.fleet.add_prefill_tokens(epoch, -num_tokens)
            self._prefill_on = None

    def _remember_output(self) -> None:
        """A conversation comes back with its answer in the prompt: remember where it is cached."""
        assert self._attempt is not None
        fleet, generation = self._dispatcher.fleet, self._generation
        hashes = fleet.hashes((*generation.prompt, *self._output), generation.salt)
        fleet.remember(hashes, [self._attempt.link.info.epoch])

    def _time_left_s(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - self._clock())
