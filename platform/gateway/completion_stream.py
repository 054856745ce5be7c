"""One completion under way: token updates in, text out, and at the end what it cost.

Both faces read from here and only format.

    opened -> deltas ... -> last delta (with a finish reason) -> closed: usage and receipt are final
                 | the caller closes early, the deadline passes, the dispatcher raises
                 +-> closed: the generation is stopped
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from types import TracebackType

from baton.core.clock import Clock, monotonic
from baton.core.errors import BatonError, DeadlineExceeded
from baton.core.messages import Receipt, TokenUpdate
from baton.platform.gateway.generation import Dispatcher, Generation, RunningGeneration
from baton.platform.gateway.metrics import GatewayMetrics
from baton.platform.gateway.text.output_text import OutputText, TextDelta
from baton.platform.observe.traces import RequestTraces


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


class CompletionStream:
    """Enter it as a context; iterate for deltas. Leaving the context stops the generation.

    Entering and iterating raise Overloaded, Unavailable, DeadlineExceeded or InvalidRequest.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        generation: Generation,
        output: OutputText,
        *,
        metrics: GatewayMetrics,
        traces: RequestTraces | None = None,
        clock: Clock = monotonic,
    ) -> None:
        self.generation = generation
        self._dispatcher = dispatcher
        self._output = output
        self._metrics = metrics
        self._traces = traces
        self._clock = clock
        self._opened_at = self._updated_at = clock()
        self._running: RunningGeneration | None = None
        self._updates: AsyncIterator[TokenUpdate] | None = None
        self._num_output = 0
        self._outcome = "cancelled"
        self._is_closed = False

    @property
    def usage(self) -> Usage:
        """What the client has been given so far; final once closed."""
        return Usage(
            prompt_tokens=len(self.generation.prompt),
            cached_tokens=self.receipt.cached_tokens,
            output_tokens=self._num_output,
        )

    @property
    def receipt(self) -> Receipt:
        """The best known; final once closed."""
        return Receipt() if self._running is None else self._running.receipt

    async def __aenter__(self) -> CompletionStream:
        self._metrics.open_requests.inc()
        try:
            async with self._within_deadline():
                self._running = await self._dispatcher.start(self.generation)
        except BaseException as error:
            await self._close_after(error)
            raise
        self._updates = aiter(self._running)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._close_after(error)

    def __aiter__(self) -> CompletionStream:
        return self

    async def __anext__(self) -> TextDelta:
        if self._is_closed or self._outcome == "ok":
            await self.close()
            raise StopAsyncIteration
        assert self._updates is not None, "a stream is entered before it is read"
        async with self._within_deadline():
            update = await anext(self._updates)
        self._observe(update)
        delta = self._output.feed(update)
        self._num_output += len(delta.tokens)
        if delta.finish_reason is not None:
            self._outcome = "ok"
        return delta

    async def close(self) -> None:
        """Stop the generation if it still runs. Safe to repeat."""
        if self._is_closed:
            return
        self._is_closed = True
        self._metrics.open_requests.dec()
        try:
            if self._running is not None:
                await self._running.stop(self._num_output)
        finally:
            if self._outcome == "ok":
                self._metrics.total_s.observe(self._clock() - self._opened_at)
            self._metrics.count_ended(
                self._outcome, self.receipt, len(self.generation.prompt), self._num_output
            )
            if self._traces is not None:
                seconds = self._clock() - self._opened_at
                request_id = self.generation.request_id
                self._traces.record(request_id, self._outcome, self.receipt, seconds=seconds)

    async def _close_after(self, error: BaseException | None) -> None:
        if self._outcome != "ok" and isinstance(error, Exception):
            self._outcome = type(error).__name__ if isinstance(error, BatonError) else "error"
        await self.close()

    def _within_deadline(self) -> AbstractAsyncContextManager[None]:
        allowed_s = self.generation.time_left_s
        if allowed_s is None:
            return _time_limit(None)
        return _time_limit(max(0.0, self._opened_at + allowed_s - self._clock()))

    def _observe(self, update: TokenUpdate) -> None:
        if not update.tokens:
            return
        now = self._clock()
        if self._num_output:
            self._metrics.gap_s.observe(now - self._updated_at)
        else:
            self._metrics.first_token_s.observe(now - self._opened_at)
        self._updated_at = now


@asynccontextmanager
async def _time_limit(seconds: float | None) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as expired:
        raise DeadlineExceeded("the request took longer than its time limit") from expired
