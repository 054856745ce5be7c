"""One generation from start to last update, with metrics and a span.

made -> entered: it has a place -> updates ... -> closed
            | the caller leaves early, the dispatcher raises (its deadline passed, say)
            +-> closed: the generation is stopped
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from types import TracebackType
from typing import Self

from baton.core.clock import Clock, monotonic
from baton.core.errors import BatonError
from baton.core.messages import Receipt, TokenUpdate
from baton.gateway.requests.generations.generation import Dispatcher, Generation, RunningGeneration
from baton.gateway.requests.generations.generation_span import GenerationSpan
from baton.gateway.requests.metrics import GatewayMetrics


class GenerationRun:
    """Enter it as a context, then ask for updates. Leaving the context stops the generation.

    Entering and asking raise Overloaded, Unavailable, DeadlineExceeded or InvalidRequest.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        generation: Generation,
        *,
        metrics: GatewayMetrics,
        spend: Callable[[int], None],
        model: str = "",
        clock: Clock = monotonic,
    ) -> None:
        """`spend` is called for each token given to the caller. `model`: its public name."""
        self.generation = generation
        self.num_delivered = 0
        """Tokens given to the client; counted by the code that delivers them."""
        self.is_complete = False
        """Set by the reader when it needs no more updates."""
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._spend = spend
        self._span = GenerationSpan(generation, model)
        self._clock = clock
        self._made_at = self._updated_at = clock()
        self._running: RunningGeneration | None = None
        self._updates: AsyncIterator[TokenUpdate] | None = None
        self._outcome = "cancelled"
        self.is_closed = False
        self._num_known = len(generation.known_output)
        """Known tokens, already charged at another gateway, that will come first."""
        self._singles: deque[TokenUpdate] = deque()

    @property
    def receipt(self) -> Receipt:
        """The receipt so far; final once closed."""
        return Receipt() if self._running is None else self._running.receipt

    async def __aenter__(self) -> Self:
        self._metrics.num_open += 1
        try:
            self._span.begin()
            self._running = await self._dispatcher.start(self._as_dispatched())
        except BaseException as error:
            await self._close_after(error)
            raise
        self._metrics.admission_s.observe(self._clock() - self._made_at)
        self._updates = aiter(self._running)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._close_after(error)

    async def next(self) -> TokenUpdate:
        """Raises StopAsyncIteration after the last."""
        assert self._updates is not None, "a run is entered before it is read"
        if self._singles:
            return self._singles.popleft()
        update = await anext(self._updates)
        if update.tokens:
            self._observe_tokens(len(update.tokens))
            num_new = len(update.tokens) - self._num_known
            self._num_known = max(0, -num_new)
            self._spend(max(0, num_new))
        if self.generation.parking is None or len(update.tokens) <= 1:
            return update
        self._singles.extend(one_by_one(update))
        return self._singles.popleft()

    async def close(self) -> None:
        """Stop the generation if it still runs. Safe to repeat."""
        if self.is_closed:
            return
        self.is_closed = True
        outcome = "ok" if self.is_complete else self._outcome
        self._metrics.num_open -= 1
        try:
            if self._running is not None:
                await self._running.stop(self.num_delivered, is_finished=self.is_complete)
        finally:
            seconds = self._clock() - self._made_at
            if self.is_complete:
                self._metrics.total_s.observe(seconds)
            self._metrics.count_ended(outcome, self.generation, self.receipt, self.num_delivered)
            self._span.end(outcome, self.receipt)

    async def _close_after(self, error: BaseException | None) -> None:
        if isinstance(error, Exception):
            self._outcome = type(error).__name__ if isinstance(error, BatonError) else "error"
        await self.close()

    def _as_dispatched(self) -> Generation:
        """The generation with the time left: its limit counts from the request's arrival."""
        generation, limit_s = self._span.within(self.generation), self.generation.time_left_s
        if limit_s is None:
            return generation
        spent_s = self._clock() - self._made_at
        return replace(generation, time_left_s=max(0.0, limit_s - spent_s))

    def _observe_tokens(self, number: int) -> None:
        now = self._clock()
        if self.num_delivered:
            gap_s = (now - self._updated_at) / number
            self._metrics.token_s.observe(gap_s, times=number)
        else:
            self._metrics.first_token_s.observe(now - self._made_at)
            self._span.first_token()
        self._updated_at = now


def one_by_one(update: TokenUpdate) -> Iterator[TokenUpdate]:
    """Split an update into one per token, the finish reason with the last. The written stream then
    does not depend on timing, so that another gateway writes the same."""
    *before, last = range(len(update.tokens))
    for place in before:
        yield replace(
            update,
            tokens=update.tokens[place : place + 1],
            logprobs=update.logprobs[place : place + 1],
            prompt_logprobs=update.prompt_logprobs if place == 0 else (),
            finish_reason=None,
            receipt=None,
        )
    yield replace(
        update,
        tokens=update.tokens[last:],
        logprobs=update.logprobs[last:],
        prompt_logprobs=(),
    )
