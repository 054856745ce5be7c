"""Finds each request of this gateway a place among the replicas it knows.

    start -> RunningRequest --place--> AdmissionQueue, in turn --> policy, on the fleet's view
                                <----- Placed: an attempt, open on a decode replica

A request waits here, never after an expensive prefill. Where it goes is the policy's to say.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from baton.core.clock import Clock, monotonic
from baton.core.errors import DeadlineExceeded, Unavailable
from baton.core.ids import Epoch, RequestId, new_epoch
from baton.core.messages import GenerateRequest, Pooling
from baton.platform.gateway.fleet.admission import AdmissionQueue
from baton.platform.gateway.fleet.fleet import Fleet, RegistryClient
from baton.platform.gateway.fleet.placed import Placed
from baton.platform.gateway.fleet.running_request import RunningRequest
from baton.platform.gateway.generation import Generation
from baton.platform.observe.fleet_report import leaks_report, metrics_report, status_report
from baton.platform.router.policy import LeastWork, PlacementRequest


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
        self._queue: AdmissionQueue[Placed] = AdmissionQueue(max_waiting)
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

        async def place(
            request: GenerateRequest, lost: frozenset[Epoch], time_left_s: float | None
        ) -> Placed:
            return await self._place(
                lambda: self._try_place(request, lost, generation.near), request, time_left_s
            )

        running = RunningRequest(generation, place, self._clock)
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
        inspections = await self.fleet.inspect()
        report = status_report(self.fleet.replicas, inspections, self.fleet.kv_knowledge())
        return {**report, "num_waiting": len(self._queue)}

    async def metrics_text(self) -> str:
        inspections = await self.fleet.inspect(timeout_s=1.0)
        return metrics_report(self.fleet.replicas, inspections, self.fleet.kv_knowledge())

    async def _place(
        self,
        try_place: Callable[[], Placed | None],
        request: GenerateRequest,
        time_left_s: float | None,
    ) -> Placed:
        """Wait for a place, in turn, and open an attempt there."""
        try:
            async with asyncio.timeout(time_left_s), self._while_replicas_may_come():
                return await self._queue.place(
                    try_place,
                    lambda placed: placed.close(0),
                    is_retry=request.attempt > 1,
                    priority=request.priority,
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
        self, request: GenerateRequest, lost: frozenset[Epoch], near: RequestId | None
    ) -> Placed | None:
        if not any(replica.is_open for replica in self.fleet.view(()).decode):
            return None  # most wakes come to this: do not look a long prompt up for nothing
        known = (*request.prompt, *request.output)
        hashes = self.fleet.hashes(known, request.salt) if _reads_cache(request) else ()
        placement = self._policy.place(
            PlacementRequest(
                num_tokens=len(known),
                lost=lost,
                near=self.fleet.where_runs(near),
                local_because=_why_local(request),
            ),
            self.fleet.view(hashes),
            self._clock(),
        )
        return None if placement is None else Placed(self.fleet, placement, request, hashes)


def _why_local(request: GenerateRequest) -> str:
    """What only the decode replica can answer with, and only if it computes the prompt."""
    if request.pooling is not None:
        return "an embedding of the prompt"
    if _wants_prompt_logprobs(request):
        return "logprobs of the prompt"
    return ""


def _reads_cache(request: GenerateRequest) -> bool:
    """Whether cached blocks spare anything: not where every token of the prompt must be run."""
    return request.pooling is not Pooling.MEAN and not _wants_prompt_logprobs(request)


def _wants_prompt_logprobs(request: GenerateRequest) -> bool:
    """They come with the first token, so a continuation needs them no more."""
    return request.sampling.num_prompt_logprobs is not None and not request.output
