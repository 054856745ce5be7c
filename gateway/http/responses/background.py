"""Background responses: each runs without its client, which fetches it later.

create    stored as in_progress, with a sign of life; then the client is answered, and it runs here
running   the sign changes at each renewal, while the stored status is in_progress
ended     stored as completed, incomplete or failed; nothing interrupts that
cancel    kept as cancelled, by any gateway, unless it was kept as ended before; where it runs it
          stops, at the next renewal at the latest
restart   a gateway that stops stores its unfinished ones as failed. If it was killed, the
          sign stops changing: a gateway that sees that for a while, by its own clock, replaces
          the sign with a notice, and all gateways report that it failed

Only the gateway that runs a response, and a cancel, change what is stored. So a gateway that was
wrongly thought dead loses nothing: its next sign makes the response in_progress again, and the end
that it stores holds.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from baton.core.clock import Clock, monotonic
from baton.core.errors import (
    BatonError,
    InvalidRequest,
    Overloaded,
    StorageFull,
    StorageUnavailable,
)
from baton.core.wording import count_of
from baton.gateway.http.responses.answer import ResponseAnswer, ResponseError
from baton.gateway.http.responses.input import InputItem
from baton.gateway.http.responses.kept import KIND, KeptResponse, KeptResponses, kept_response
from baton.gateway.http.responses.sign_watch import SignWatch
from baton.gateway.storage.folder import Place

log = logging.getLogger(__name__)

SIGN_KIND = "response_run"
SIGN_TTL_S = 86_400.0
"""Expiry of signs, only for cleaning up: hosts' clocks need not agree."""
RENEW_S = 5.0
NOBODY_RUNS = b"interrupted"
"""The notice that replaces the sign of a gateway that was killed."""
KEEP_S = 15.0
"""The most seconds that a stop or a cancel waits for an end that is being stored."""
KEEP_TRIES = 12
"""Attempts to store an end while the storage does not answer."""
MAX_RUNNING = 1024
"""Background responses that one gateway runs. Other requests are limited by connections."""
OWNER_PART = 4
"""With several owners, one may have 1/OWNER_PART of them, and no more than are left, so that a few
owners cannot take all the room."""
INTERRUPTED = ResponseError(
    "interrupted", "the gateway that ran it ended before it was done; send it again"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundRun:
    """A background response. Its answer is updated as it runs."""

    answer: ResponseAnswer
    given: Sequence[InputItem]
    """Its whole input, earlier turns included."""
    owner: str
    work: Callable[[], Awaitable[object]]
    """Runs it and completes the answer."""
    fail: Callable[[Exception], object]
    """Turns the answer into a failed one."""

    @property
    def place(self) -> Place:
        return Place(KIND, self.owner, self.answer.id)


class BackgroundResponses:
    """The background responses that one gateway runs, and what it knows of others."""

    def __init__(
        self,
        kept: KeptResponses,
        *,
        num_owners: Callable[[], int] = lambda: 1,
        clock: Clock = monotonic,
    ) -> None:
        """`num_owners`: the current number of owners."""
        self.kept = kept
        self._num_owners = num_owners
        self._num_by_owner: Counter[str] = Counter()
        """The responses that run here or are about to."""
        self._running: dict[Place, asyncio.Task[None]] = {}
        self._keeping: set[Place] = set()
        """Responses that have ended, and whose end is being stored."""
        self._watch = SignWatch(clock)
        self._is_closing = False

    async def begin(self, run: BackgroundRun) -> None:
        """Store the response and run it. Raises Overloaded, StorageFull, StorageUnavailable."""
        self._take_room(run.owner)
        try:
            await self._sign(run.place)
            await self.kept.put(run.answer, run.given, run.owner)
        except BaseException:
            self._give_room(run.owner)
            await self._remove_sign(run.place)
            raise
        task = asyncio.create_task(self._run(run), name=f"{run.answer.id} in the background")
        self._running[run.place] = task
        task.add_done_callback(lambda _: self._end(run.place))

    async def find(self, response_id: str, owner: str, field: str) -> KeptResponse:
        """The stored response; as failed, if it is in progress but no gateway runs it. Raises
        NotKept, StorageUnavailable."""
        kept = await self.kept.find(response_id, owner, field)
        place = Place(KIND, owner, response_id)
        if not kept.is_in_progress:
            self._watch.forget(place)
            return kept
        if place in self._running or await self._is_alive(place):
            return kept
        kept = await self.kept.find(response_id, owner, field)  # it may have ended between the two
        if not kept.is_in_progress:
            return kept
        return kept.changed(status="failed", error=INTERRUPTED)

    async def cancel(self, response_id: str, owner: str, field: str) -> KeptResponse:
        """Cancel it, unless it has ended, and return it. Raises NotKept, InvalidRequest,
        StorageFull, StorageUnavailable."""
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
        await self._stop(place)
        now = await self.kept.end(place, lambda kept: kept.changed(status="cancelled"))
        return now or await self.kept.find(response_id, owner, field)  # raises NotKept

    async def delete(self, response_id: str, owner: str, field: str) -> None:
        """Raises NotKept, StorageUnavailable."""
        await self._stop(Place(KIND, owner, response_id))
        await self.kept.delete(response_id, owner, field)

    async def close(self, grace_s: float) -> None:
        """Wait for running responses; store those that have not ended by then as failed."""
        if not self._running:
            return
        await asyncio.wait(tuple(self._running.values()), timeout=grace_s)
        self._is_closing = True
        for place, task in self._running.items():
            if place not in self._keeping:
                task.cancel()
        if not self._running:
            return
        _, late = await asyncio.wait(tuple(self._running.values()), timeout=KEEP_S)
        for task in late:
            log.warning("%s: its end is lost, the storage does not answer", task.get_name())
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    def _take_room(self, owner: str) -> None:
        """Raises Overloaded."""
        num_left = MAX_RUNNING - self._num_by_owner.total()
        if not num_left:
            raise Overloaded(
                f"{MAX_RUNNING} responses run in the background at this gateway; try again later"
            )
        num_own = self._num_by_owner[owner]
        if self._num_owners() > 1 and num_own >= min(max(1, MAX_RUNNING // OWNER_PART), num_left):
            raise Overloaded(
                f"{count_of(num_own, 'response')} of yours may run in the background at this "
                f"gateway while it has {count_of(num_left, 'place')} left; wait until one has ended"
            )
        self._num_by_owner[owner] += 1

    def _give_room(self, owner: str) -> None:
        self._num_by_owner[owner] -= 1
        if not self._num_by_owner[owner]:
            del self._num_by_owner[owner]

    def _end(self, place: Place) -> None:
        del self._running[place]
        self._give_room(place.owner)

    async def _stop(self, place: Place) -> None:
        """Stop it if it runs here, after an end that is being stored."""
        if (task := self._running.get(place)) is None:
            return
        if place not in self._keeping:
            task.cancel()
        await asyncio.wait([task], timeout=KEEP_S)

    async def _run(self, run: BackgroundRun) -> None:
        this = asyncio.current_task()
        assert this is not None, "it is a task's"
        renewing = asyncio.create_task(self._renew(run.place, this))
        try:
            await run.work()
        except asyncio.CancelledError:
            if not self._is_closing:  # the canceller stores its end
                renewing.cancel()
                await self._remove_sign(run.place)
                raise
            run.answer.status, run.answer.error = "failed", INTERRUPTED
        except Exception as error:
            if not isinstance(error, BatonError):
                log.exception("%s failed in the background", run.answer.id)
            run.fail(error)
        finally:
            renewing.cancel()
        self._keeping.add(run.place)  # from here on only a hanging storage can end this task early
        try:
            await self._keep(run)
        finally:
            self._keeping.discard(run.place)

    async def _keep(self, run: BackgroundRun) -> None:
        ended = kept_response(run.answer, run.given)
        for num_left in reversed(range(KEEP_TRIES)):
            try:
                await self.kept.end(run.place, lambda _: ended)
                await self._remove_sign(run.place)
                return
            except (StorageUnavailable, StorageFull) as error:
                if isinstance(error, StorageFull) or self._is_closing or not num_left:
                    log.warning("%s is lost, which ran in the background: %s", run.answer.id, error)
                    return
            await asyncio.sleep(RENEW_S)

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
        value = secrets.token_bytes(8)
        await self.kept.storage.put(_sign_of(place), value, ttl_s=SIGN_TTL_S)

    async def _remove_sign(self, place: Place) -> None:
        with suppress(StorageUnavailable):  # it expires
            await self.kept.storage.delete(_sign_of(place))

    async def _is_alive(self, place: Place) -> bool:
        """Whether a gateway seems to run it. Raises StorageUnavailable."""
        try:
            sign = await self.kept.storage.get(_sign_of(place))
        except StorageUnavailable:
            self._watch.begin_again()
            raise
        if sign == NOBODY_RUNS:
            return False
        if not self._watch.is_still(place, sign):
            return True
        with suppress(StorageUnavailable, StorageFull):  # then others have to see for themselves
            await self.kept.storage.put(_sign_of(place), NOBODY_RUNS, ttl_s=SIGN_TTL_S)
        return False


def _sign_of(place: Place) -> Place:
    return Place(SIGN_KIND, place.owner, place.id)
