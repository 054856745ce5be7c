"""Responses in the background: each runs without its client, who asks for it later.

create    kept as in_progress, a sign of life beside it; then it is answered, and runs here
running   the sign is renewed, as long as what is kept is in_progress
ended     kept as completed, incomplete or failed
cancel    kept as cancelled, by any gateway; where it runs it stops, at the next renewal at the
          latest
restart   a gateway that stops keeps what it has not done as failed. Of one that was killed the
          sign expires, and who asks next keeps it so
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from baton.core.errors import (
    BatonError,
    InvalidRequest,
    Overloaded,
    StorageFull,
    StorageUnavailable,
)
from baton.gateway.http.responses.answer import ResponseAnswer, ResponseError
from baton.gateway.http.responses.input import InputItem
from baton.gateway.http.responses.kept import KIND, KeptResponse, KeptResponses
from baton.gateway.storage.folder import Place

log = logging.getLogger(__name__)

SIGN_KIND = "response_run"
SIGN_TTL_S = 30.0
RENEW_S = 5.0
MAX_RUNNING = 1024
"""The most that one gateway runs; connections limit requests that somebody waits for."""
INTERRUPTED = ResponseError(
    "interrupted", "the gateway that ran it ended before it was done; send it again"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundRun:
    """One of them. Its answer becomes what it is as it runs."""

    answer: ResponseAnswer
    given: Sequence[InputItem]
    """All that it was given."""
    owner: str
    work: Callable[[], Awaitable[object]]
    """Completes the answer."""
    fail: Callable[[Exception], object]
    """Makes it one that failed."""

    @property
    def place(self) -> Place:
        return Place(KIND, self.owner, self.answer.id)


class BackgroundResponses:
    """The background responses that one gateway runs, and what it knows of others."""

    def __init__(self, kept: KeptResponses) -> None:
        self.kept = kept
        self._running: dict[Place, asyncio.Task[None]] = {}
        self._is_closing = False

    async def begin(self, run: BackgroundRun) -> None:
        """It is kept, and runs. Raises Overloaded, StorageUnavailable."""
        if len(self._running) >= MAX_RUNNING:
            raise Overloaded(
                f"{MAX_RUNNING} responses run in the background at this gateway; try again later"
            )
        await self._sign(run.place)
        await self.kept.put(run.answer, run.given, run.owner)
        task = asyncio.create_task(self._run(run), name=f"{run.answer.id} in the background")
        self._running[run.place] = task
        task.add_done_callback(lambda _: self._running.pop(run.place, None))

    async def find(self, response_id: str, owner: str, field: str) -> KeptResponse:
        """What is kept of it; it has failed if it is said to run and nobody does. Raises NotKept,
        StorageUnavailable."""
        kept = await self.kept.find(response_id, owner, field)
        place = Place(KIND, owner, response_id)
        if not kept.is_in_progress or place in self._running or await self._has_sign(place):
            return kept
        kept = await self.kept.find(response_id, owner, field)  # it may have ended between the two
        if not kept.is_in_progress:
            return kept
        return await self.kept.change(place, kept, status="failed", error=INTERRUPTED)

    async def cancel(self, response_id: str, owner: str, field: str) -> KeptResponse:
        """As it is then: what has ended stays as it ended. Raises NotKept, InvalidRequest,
        StorageUnavailable."""
        kept = await self.find(response_id, owner, field)
        if not kept.is_background:
            raise InvalidRequest(
                "only responses with background: true can be cancelled; to stop one that streams, "
                "close its connection",
                field=field,
            )
        if not kept.is_in_progress:
            return kept
        place = Place(KIND, owner, response_id)
        self._stop(place)
        return await self.kept.change(place, kept, status="cancelled")

    async def delete(self, response_id: str, owner: str, field: str) -> None:
        """Raises NotKept, StorageUnavailable."""
        self._stop(Place(KIND, owner, response_id))
        await self.kept.delete(response_id, owner, field)

    async def close(self, grace_s: float) -> None:
        """Wait for those that run; what has not ended by then is kept as failed."""
        if not self._running:
            return
        await asyncio.wait(tuple(self._running.values()), timeout=grace_s)
        self._is_closing = True
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    def _stop(self, place: Place) -> None:
        if (task := self._running.get(place)) is not None:
            task.cancel()

    async def _run(self, run: BackgroundRun) -> None:
        this = asyncio.current_task()
        assert this is not None, "it is a task's"
        renewing = asyncio.create_task(self._renew(run.place, this))
        try:
            await run.work()
        except asyncio.CancelledError:
            if not self._is_closing:
                raise  # who cancelled or deleted it has kept, or deleted, what is to be said of it
            run.answer.status, run.answer.error = "failed", INTERRUPTED
        except Exception as error:
            if not isinstance(error, BatonError):
                log.exception("%s failed in the background", run.answer.id)
            run.fail(error)
        finally:
            renewing.cancel()
        try:
            if await self._is_in_progress(run.place):
                await self.kept.put(run.answer, run.given, run.owner)
            await self.kept.storage.delete(_sign_of(run.place))
        except (StorageUnavailable, StorageFull) as error:
            log.warning("%s is lost, which ran in the background: %s", run.answer.id, error)

    async def _renew(self, place: Place, running: asyncio.Task[None]) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            with suppress(StorageUnavailable, StorageFull):  # the next time, perhaps
                if not await self._is_in_progress(place):
                    running.cancel()
                    return
                await self._sign(place)

    async def _is_in_progress(self, place: Place) -> bool:
        """Raises StorageUnavailable."""
        kept = await self.kept.look(place)
        return kept is not None and kept.is_in_progress

    async def _sign(self, place: Place) -> None:
        """Raises StorageUnavailable, StorageFull."""
        await self.kept.storage.put(_sign_of(place), b"", ttl_s=SIGN_TTL_S)

    async def _has_sign(self, place: Place) -> bool:
        """Raises StorageUnavailable."""
        return await self.kept.storage.get(_sign_of(place)) is not None


def _sign_of(place: Place) -> Place:
    return Place(SIGN_KIND, place.owner, place.id)
