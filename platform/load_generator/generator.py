"""Sends a workload on schedule, and records every outcome.

    workload --a chain when it is due--> task of the chain --request by request--> LoadTarget
                                              |  due: when the plan says, or gap_s after the
                                              |  answer before; never when the generator gets to it
                                              v
                                          Outcome

Bodies are built before they are due. Remaining lateness is recorded: `late_s` of each outcome, and
how late the event loop woke from short sleeps.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from baton.core.clock import Clock, monotonic
from baton.platform.load_generator.outcome import Ending, Exchange, LoadTarget, Outcome
from baton.platform.load_generator.workload import Chain, PlannedRequest, Workload

HEARTBEAT_S = 0.02
NUM_AHEAD = 32
"""Bodies built ahead, so that requests of a burst do not wait for each other."""
BACKOFF_S = 1.0
"""Seconds before another try, where a 429 does not say how long."""


_Ready = tuple[Chain, bytes]
"""A chain, and the body of its first request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendOptions:
    timeout_s: float = 600.0
    """Seconds allowed for one request, retries included."""
    duration_s: float | None = None
    """No request is sent later than so long after the start."""
    is_retried: bool = False
    """A 429 is followed by another try, when its Retry-After has passed."""


@dataclass(slots=True)
class Record:
    """The results so far. Times are seconds since the start."""

    outcomes: list[Outcome] = field(default_factory=list)
    num_sent: int = 0
    loop_late_s: list[float] = field(default_factory=list)
    """Seconds by which each short sleep of the generator's event loop was too long."""
    is_interrupted: bool = False
    now: Callable[[], float] = lambda: 0.0
    """Seconds since the start."""

    @property
    def num_in_flight(self) -> int:
        return self.num_sent - len(self.outcomes)


class LoadGenerator:
    def __init__(
        self,
        target: LoadTarget,
        compose: Callable[[PlannedRequest], bytes],
        options: SendOptions,
        clock: Clock = monotonic,
    ) -> None:
        self._target = target
        self._compose = compose
        self._options = options
        self._clock = clock
        self._started = clock()
        self._running: asyncio.Task[None] | None = None
        self._chains: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        """The first exception of the prompt writer."""
        self.record = Record(now=self._now)

    async def run(self, workload: Workload) -> Record:
        """Return when everything is answered, or `stop` was called. An exception of the prompt
        writer ends the run, and is raised.
        """
        ready: asyncio.Queue[_Ready | None] = asyncio.Queue(NUM_AHEAD)
        composing = asyncio.create_task(self._compose_ahead(workload, ready))
        self._running = asyncio.create_task(self._run(workload.max_chains, ready))
        composing.add_done_callback(self._end_if_failed)
        heartbeat = asyncio.create_task(self._measure_loop_lag())
        try:
            await self._running
        except asyncio.CancelledError:
            if self._failure is not None:
                raise self._failure from None
            if not self.record.is_interrupted:
                raise
        finally:
            heartbeat.cancel()
            composing.cancel()
            await asyncio.gather(heartbeat, composing, *self._chains, return_exceptions=True)
        return self.record

    def stop(self) -> None:
        """Send nothing more and wait for nothing more."""
        self.record.is_interrupted = True
        self._end()

    def _end(self) -> None:
        for task in (self._running, *self._chains):
            if task is not None:
                task.cancel()

    def _end_if_failed(self, task: asyncio.Task[None]) -> None:
        """End the run if a prompt could not be written, since the load would not be the requested
        one."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._failure = self._failure or error
            self._end()

    def _now(self) -> float:
        return self._clock() - self._started

    async def _compose_ahead(self, workload: Workload, ready: asyncio.Queue[_Ready | None]) -> None:
        for chain in workload.chains:
            await ready.put((chain, self._compose(chain.requests[0])))
            await asyncio.sleep(0)  # yield: answers are read in the same loop
        await ready.put(None)

    async def _run(self, max_chains: int | None, ready: asyncio.Queue[_Ready | None]) -> None:
        slots = None if max_chains is None else asyncio.Semaphore(max_chains)
        next_ = await ready.get()
        self._started = self._clock()
        while next_ is not None and not self._is_over(next_[0].starts_s):
            chain, body = next_
            await self._sleep_until(chain.starts_s)
            due_s = chain.starts_s
            if slots is not None:
                await slots.acquire()
                due_s = max(due_s, self._now())  # no slot was free before
            if self._is_over(due_s):
                break
            self._begin(chain, body, due_s, slots)
            next_ = await ready.get()
        await asyncio.gather(*self._chains)

    def _begin(
        self, chain: Chain, body: bytes, due_s: float, slots: asyncio.Semaphore | None
    ) -> None:
        task = asyncio.create_task(self._run_chain(chain, body, due_s))
        self._chains.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._chains.discard(task)
            self._end_if_failed(task)
            if slots is not None:
                slots.release()

        task.add_done_callback(ended)

    async def _run_chain(self, chain: Chain, body: bytes, due_s: float) -> None:
        first, *later = chain.requests
        outcome = await self._send(first, body, due_s)
        for request in later:
            due_s = outcome.ended_s + request.gap_s
            if self._is_over(due_s):
                return
            body = self._compose(request)
            await self._sleep_until(due_s)
            outcome = await self._send(request, body, due_s)

    async def _send(self, request: PlannedRequest, body: bytes, due_s: float) -> Outcome:
        sent_s = self._now()
        self.record.num_sent += 1
        num_tries = 0
        unanswered = Exchange(ending=Ending.TIMED_OUT, detail=f"{self._options.timeout_s:g} s")
        exchange = unanswered
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._options.timeout_s):
                    while True:
                        num_tries += 1
                        exchange = unanswered  # whatever an earlier try received
                        exchange = await self._target.ask(body)
                        if exchange.ending is not Ending.REJECTED or not self._options.is_retried:
                            break
                        wait_s = exchange.retry_after_s
                        await asyncio.sleep(BACKOFF_S if wait_s is None else wait_s)
        except asyncio.CancelledError:
            exchange = Exchange(ending=Ending.INTERRUPTED)
            raise
        finally:
            outcome = Outcome(
                request=request,
                ending=exchange.ending,
                due_s=due_s,
                sent_s=sent_s,
                ended_s=self._now(),
                token_s=tuple(time - self._started for time in exchange.token_times),
                usage=exchange.usage,
                detail=exchange.detail,
                num_retries=max(num_tries - 1, 0),
            )
            self.record.outcomes.append(outcome)
        return outcome

    def _is_over(self, due_s: float) -> bool:
        duration_s = self._options.duration_s
        return duration_s is not None and due_s >= duration_s

    async def _sleep_until(self, due_s: float) -> None:
        await asyncio.sleep(max(due_s - self._now(), 0.0))

    async def _measure_loop_lag(self) -> None:
        while True:
            began = self._clock()
            await asyncio.sleep(HEARTBEAT_S)
            self.record.loop_late_s.append(self._clock() - began - HEARTBEAT_S)
