"""A dispatcher to one decode worker in the same process.

face --- Generation --> LocalDispatcher --- GenerateRequest --> DecodeWorker
     <-- TokenUpdates --                <-- one session's frames --
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from baton.core.errors import InvalidRequest, Unavailable
from baton.core.ids import RequestId, new_epoch
from baton.core.messages import GenerateRequest, ParkedStream, Receipt, TokenUpdate
from baton.core.metrics import Family
from baton.core.parking import TakeStream
from baton.core.replicas import ReplicaAddress
from baton.decode_service.worker import DecodeWorker
from baton.gateway.requests.generations.generation import DecodeRoom, Estimate, Generation
from baton.gateway.requests.generations.prompt_progress import PromptProgress
from baton.gateway.requests.readiness import Missing, Wanted
from baton.router.explain.capture import capture
from baton.router.explain.decisions import Decisions

ATTEMPT = 1
"""The only attempt, since there is no other replica."""
PLACEMENT = "the only replica there is"


@dataclass(slots=True, eq=False)
class LocalGeneration:
    """A `baton.gateway.requests.generations.generation.RunningGeneration`."""

    dispatcher: LocalDispatcher
    request_id: RequestId
    receipt: Receipt = field(default_factory=Receipt)
    updates: asyncio.Queue[TokenUpdate | Unavailable] = field(default_factory=asyncio.Queue)

    async def __aiter__(self) -> AsyncIterator[TokenUpdate]:
        is_last = False
        while not is_last:
            update = await self.updates.get()
            if isinstance(update, Unavailable):
                raise update
            if update.receipt is not None:
                self.receipt = replace(update.receipt, placement=PLACEMENT)
            if update.error is not None:
                raise update.error
            yield update
            is_last = update.is_last

    async def stop(self, num_delivered: int, *, is_finished: bool = False) -> None:
        self.dispatcher.forget(self.request_id, num_delivered)


class LocalDispatcher:
    """A `baton.gateway.requests.generations.generation.Dispatcher`."""

    def __init__(self, worker: DecodeWorker, *, prefill: tuple[ReplicaAddress, ...] = ()) -> None:
        """`prefill`: computes the prompts; None: the decode worker does."""
        self.decisions = Decisions(0)
        """Empty: all requests go to the one worker."""
        self._worker = worker
        self._prefill = prefill
        self._session = worker.open_session(new_epoch())
        self._running_by_id: dict[RequestId, LocalGeneration] = {}
        self._delivering = asyncio.create_task(self._deliver())

    async def close(self) -> None:
        """Cancel the running requests."""
        self._session.end()
        await self._delivering
        self._worker.close_session(self._session)

    def captured(self) -> Iterator[bytes]:
        return capture((), "", ())

    async def estimate(self, generation: Generation) -> Estimate:
        raise Unavailable("there is no gateway here, which learns how long requests take")

    def progress(self, generation: Generation) -> PromptProgress | None:
        return None

    def room(self) -> DecodeRoom:
        max_open, num_open = self._worker.max_open, len(self._running_by_id)
        return DecodeRoom(
            num_places=max_open, num_taken=num_open, num_awaited=num_open, num_waiting=0
        )

    async def start(self, generation: Generation) -> LocalGeneration:
        running = LocalGeneration(self, generation.request_id)
        self._running_by_id[generation.request_id] = running
        time_left_s = generation.time_left_s
        self._worker.generate(
            self._session,
            GenerateRequest(
                request_id=generation.request_id,
                attempt=ATTEMPT,
                prompt=generation.prompt,
                sampling=generation.sampling,
                salt=generation.salt,
                adapter=generation.adapter,
                tenant=generation.tenant,
                cache_points=generation.cache_points,
                prefill=self._prefill,
                priority=generation.priority,
                pooling=generation.pooling,
                time_left_ms=None if time_left_s is None else max(1, int(time_left_s * 1e3)),
            ),
        )
        return running

    def forget(self, request_id: RequestId, num_delivered: int) -> None:
        """Free all of the request, if it is not over."""
        if self._running_by_id.pop(request_id, None) is not None:
            self._worker.cancel(request_id, ATTEMPT, num_delivered)

    @property
    def max_model_len(self) -> int:
        return self._worker.core.engine.max_model_len

    def missing(self, wanted: Wanted) -> tuple[Missing, ...]:
        return ()  # no client is waiting

    async def take_stream(self, wanted: TakeStream) -> ParkedStream | None:
        return None

    def leave(self) -> None:
        pass

    def is_ready(self) -> bool:
        return not self._delivering.done()

    def trouble(self) -> str:
        return "the engine has ended"

    async def leaks(self) -> dict[str, Any]:
        return asdict(await self._worker.core.audit())

    async def status(self) -> dict[str, Any]:
        return {**asdict(self._worker.capacity()), "metrics": self._worker.metrics()}

    async def drain(self, replica_id: str, *, is_forced: bool) -> dict[str, Any]:
        raise InvalidRequest("the only replica there is cannot be drained", field="replica")

    async def undrain(self, replica_id: str) -> dict[str, Any]:
        raise InvalidRequest("the only replica there is was never drained", field="replica")

    async def flip(self, replica: str, to: str) -> dict[str, Any]:
        raise InvalidRequest("the only replica there is has both roles", field="replica")

    async def reset_prefix_cache(self, replica_id: str) -> dict[str, int]:
        return {replica_id: await self._worker.core.reset_prefix_cache()}

    def metrics(self) -> Iterator[Family]:
        return iter(())  # nobody scrapes it

    async def _deliver(self) -> None:
        while (frame := await self._session.next_frame()) is not None:
            for update in frame.updates:
                running = self._running_by_id.get(update.request_id)
                if running is not None:  # otherwise cancelled meanwhile
                    running.updates.put_nowait(update)
        for running in self._running_by_id.values():
            running.updates.put_nowait(Unavailable("the engine has stopped"))
