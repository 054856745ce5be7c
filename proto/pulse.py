"""Whether a peer answers, asked for as long as somebody waits for it.

    nothing heard for `ask_after_s` --> Ping --> answered: asked again later
                                            '--> not within `answer_s`: silent, until it speaks

A process that stands still keeps its connections open. gRPC's own pings notice that after 4 to 5 s,
and never that of an event loop. All else that comes from the peer counts as an answer, so one that
talks is not asked. What a connection says that breaks is better than silence: it is left to the
calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import grpc
import grpc.aio

from baton.core.clock import Clock, monotonic
from baton.core.errors import Unavailable
from baton.proto import replica_pb2 as pb
from baton.proto.replica_pb2_grpc import ReplicaStub


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Both together are less than anybody is to wait for a replica that answers nobody: 2 s."""

    ask_after_s: float = 0.3
    answer_s: float = 1.2
    """An event loop that stands still for so long must be a rare thing."""


class Pulse:
    """Belongs to an event loop. `on_change` is called when the peer falls silent, or speaks."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        patience: Patience,
        on_change: Callable[[], None] = lambda: None,
        clock: Clock = monotonic,
    ) -> None:
        self.is_silent = False
        self._stub = ReplicaStub(channel)
        self._patience = patience
        self._on_change = on_change
        self._clock = clock
        self._heard_at = float("-inf")
        self._is_watched = False
        self._scopes: set[asyncio.Timeout] = set()
        self._asking: asyncio.Task[None] | None = None

    def hear(self) -> None:
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
        """Within it somebody waits. Raises Unavailable there when the peer falls silent."""
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
        if self._is_awaited and (self._asking is None or self._asking.done()):
            self._asking = asyncio.create_task(self._ask_now_and_then())

    @property
    def _is_awaited(self) -> bool:
        return self._is_watched or bool(self._scopes)

    async def _ask_now_and_then(self) -> None:
        while self._is_awaited:
            rest_s = self._heard_at + self._patience.ask_after_s - self._clock()
            if rest_s > 0:
                await asyncio.sleep(rest_s)
            elif not await self._ask():
                await asyncio.sleep(self._patience.ask_after_s)

    async def _ask(self) -> bool:
        """Whether the peer has spoken since."""
        asked_at = self._clock()
        try:
            async with asyncio.timeout(self._patience.answer_s):
                await self._stub.Ping(pb.PingRequest())
            self.hear()
        except TimeoutError:
            if self._heard_at < asked_at:
                self._fall_silent()
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                self.hear()  # a refusal is an answer: an older replica knows no Ping
        return self._heard_at >= asked_at

    def _fall_silent(self) -> None:
        loop = asyncio.get_running_loop()
        for scope in self._scopes:
            if not scope.expired():
                scope.reschedule(loop.time())
        if not self.is_silent:
            self.is_silent = True
            self._on_change()
