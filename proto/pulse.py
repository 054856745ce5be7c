"""Whether a peer answers, asked for as long as somebody waits for it.

    nothing heard for `ask_after_s`, nor in `FIRST_ASK_S` since somebody waits
                                    --> Ping --> answered: asked again later
                                            '--> not within what it is allowed (`answer_time.py`):
                                                 silent, until it speaks: this Ping stays open

A process that stands still keeps its connections open. gRPC's own pings notice that after 4 to 5 s,
and never that of an event loop. All else that comes from the peer counts as an answer, so one that
talks is not asked. Time in which our own loop stands still is not the peer's: its answer may lie
here unread. What a connection says that breaks is better than silence: it is left to the calls.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
import grpc.aio

from baton.core.clock import Clock, monotonic
from baton.core.errors import Unavailable
from baton.proto import replica_pb2 as pb
from baton.proto.answer_time import AnswerTime
from baton.proto.one_call import one_call
from baton.proto.replica_pb2_grpc import ReplicaStub

log = logging.getLogger(__name__)

NUM_LOOKS = 10
"""While an answer is due it is looked for so often: each look is a chance for what came unread."""

FIRST_ASK_S = 0.05
"""Seconds before a peer is asked for whom nobody waited: most say something of their own by then,
and a Ping would be in the way of what is waited for."""

AVOIDED_S = 5.0
"""Seconds after a peer was last found silent during which nobody begins to wait for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PingTiming:
    """Both together are less than anybody is to wait for a replica that answers nobody: 2 s."""

    ask_after_s: float = 0.3
    answer_s: float = 1.2
    """Seconds to wait for a ping's answer from a peer of which nothing else is known. An event loop
    that stands still for so long must be a rare thing."""


class Pulse:
    """Belongs to an event loop. `on_change` is called when the peer falls silent, or speaks."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        ping_timing: PingTiming,
        on_change: Callable[[], None] = lambda: None,
        clock: Clock = monotonic,
    ) -> None:
        self.is_silent = False
        self._channel = channel
        self._timing = ping_timing
        self._answer_time = AnswerTime(ping_timing.answer_s)
        self._on_change = on_change
        self._clock = clock
        self._heard_at = float("-inf")
        self._silent_at = float("-inf")
        """When it was last found to be."""
        self._is_watched = False
        self._scopes: set[asyncio.Timeout] = set()
        self._asking: asyncio.Task[None] | None = None

    def received(self) -> None:
        """The peer has said something."""
        self._heard_at = self._clock()
        if self.is_silent:
            self.is_silent = False
            self._on_change()

    def watch(self, *, is_awaited: bool) -> None:
        """Whether somebody waits for the peer, from now on."""
        self._is_watched = is_awaited
        self._ask_if_awaited()

    @asynccontextmanager
    async def answers(self, name: str) -> AsyncIterator[None]:
        """Within it somebody waits. Raises Unavailable there when the peer falls silent, and at
        once if it has only just been found to be."""
        if self.is_silent and self._clock() < self._silent_at + AVOIDED_S:
            raise Unavailable(f"{name} answers nobody")
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._scopes.add(scope)
                self._ask_if_awaited()
                try:
                    yield
                finally:
                    self._scopes.discard(scope)
        except TimeoutError:
            if not scope.expired():
                raise
            raise Unavailable(f"{name} answers nobody") from None

    def close(self) -> None:
        """Nothing is asked any more. Safe to repeat."""
        self._is_watched = False
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None

    def _ask_if_awaited(self) -> None:
        if self._is_awaited and not self._is_asking:
            self._asking = asyncio.create_task(self._ask_now_and_then())

    @property
    def _is_awaited(self) -> bool:
        return self._is_watched or bool(self._scopes)

    @property
    def _is_asking(self) -> bool:
        return self._asking is not None and not self._asking.done()

    async def _ask_now_and_then(self) -> None:
        await asyncio.sleep(min(self._timing.ask_after_s, FIRST_ASK_S))
        while self._is_awaited:
            rest_s = self._heard_at + self._timing.ask_after_s - self._clock()
            if rest_s > 0:
                await asyncio.sleep(rest_s)
            elif not await self._has_answered():
                await asyncio.sleep(self._timing.ask_after_s)

    async def _has_answered(self) -> bool:
        try:
            return await self._ask()
        except Exception:  # without this task nobody who waits would ever hear of a silence
            log.exception("a peer could not be asked whether it answers; asking again")
            return False

    async def _ask(self) -> bool:
        """Return when the peer has answered, or the connection broke: whether it has."""
        asked_at = self._clock()
        # Made only now: hardly any of a thousand peers is ever asked.
        ping = one_call(ReplicaStub, "Ping", self._channel)
        answer = asyncio.ensure_future(ping(pb.PingRequest()))
        try:
            looked_s = await self._look_for(answer)
            await answer
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                return False
            # Any other refusal is an answer: an older replica knows no Ping.
        finally:
            answer.cancel()
        now = self._clock()
        self._answer_time.answered(min(looked_s, now - asked_at), now)
        self.received()
        return True

    async def _look_for(self, answer: asyncio.Future[pb.PingReply]) -> float:
        """Return when the Ping has ended: after how long, of the time in which our loop looked.

        The peer is silent once it has said nothing for too long.
        """
        look_s = self._answer_time.allowed_s(self._clock()) / NUM_LOOKS
        num_looks = num_unheard = 0
        while not answer.done():
            heard_at = self._heard_at
            await asyncio.wait((answer,), timeout=look_s)
            num_looks += 1
            num_unheard = num_unheard + 1 if self._heard_at == heard_at else 0
            if num_unheard >= NUM_LOOKS and not answer.done():
                self._fall_silent()
        return num_looks * look_s

    def _fall_silent(self) -> None:
        self._silent_at = self._clock()
        loop = asyncio.get_running_loop()
        for scope in self._scopes:
            if not scope.expired():
                scope.reschedule(loop.time())
        if not self.is_silent:
            self.is_silent = True
            self._on_change()
