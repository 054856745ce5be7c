"""Runs resumable streams: their generations go on whether or not a client is connected.

    events --(a task of the keeper's)--> log --(any number of readers)--> clients

The keeper's tasks end when the events do, when nobody comes back in time, or when it is closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Container, Iterable
from contextlib import aclosing
from functools import partial
from types import TracebackType

from baton.core.clock import Clock, monotonic
from baton.core.errors import Cancelled, StreamMoved, Unavailable
from baton.gateway.resumable.streams import HeldStream, ResumableStreams, StreamReader
from baton.gateway.resumable.takeovers import StreamTakeovers

ErrorEvents = Callable[[Exception], Iterable[bytes]]
"""Builds the last events of a stream that failed after it had begun."""


class StreamKeeper:
    """One for each gateway; belongs to its event loop."""

    def __init__(self, *, max_bytes: int, window_s: float, clock: Clock = monotonic) -> None:
        self.streams = ResumableStreams(max_bytes=max_bytes, window_s=window_s)
        self.takeovers = StreamTakeovers()
        self._clock = clock
        self._task_by_stream: dict[HeldStream, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def start(
        self,
        events: AsyncGenerator[bytes],
        *,
        owner: bytes,
        kind: str,
        error_events: ErrorEvents | None = None,
        stream_id: str | None = None,
        last_sequence: int = 0,
    ) -> StreamReading:
        """Begin `events`, to be read after event `last_sequence`: a stream that began at another
        gateway is rewritten from its first event. Raises Overloaded before anything has begun.
        Errors before the first event are raised to the readers; later ones become `error_events`,
        if any, else are raised, too.
        """
        if self._is_closed:
            raise Unavailable("this gateway is stopping")
        now = self._clock()
        stream = self.streams.open(owner=owner, kind=kind, now=now, stream_id=stream_id)
        task = asyncio.create_task(self._run(stream, events, error_events))
        self._task_by_stream[stream] = task
        task.add_done_callback(partial(self._on_end, stream))
        self._arm()
        return StreamReading(self, stream, last_sequence)

    async def find(
        self, stream_id: str, *, owner: bytes, kinds: Container[str], last_sequence: int
    ) -> StreamReading | None:
        """As `resume`; None if the stream is neither here nor being taken over. Then begin a
        takeover before any await."""
        while not self.streams.holds(stream_id):
            if not await self.takeovers.other(stream_id, owner):
                return None
        return self.resume(stream_id, owner=owner, kinds=kinds, last_sequence=last_sequence)

    def resume(
        self, stream_id: str, *, owner: bytes, kinds: Container[str], last_sequence: int
    ) -> StreamReading:
        """The events after a given one. Raises StreamNotFound or InvalidRequest."""
        stream = self.streams.find(stream_id, owner=owner, kinds=kinds)
        self.streams.check_holds_after(stream, last_sequence)
        return StreamReading(self, stream, last_sequence)

    def end(self, stream_id: str, *, owner: bytes, kinds: Container[str]) -> None:
        """End a stream and forget it: its client wants no more. Raises StreamNotFound."""
        stream = self.streams.find(stream_id, owner=owner, kinds=kinds)
        self.streams.remove(stream)
        self._stop(stream)

    def sweep(self) -> None:
        """End the streams that nobody has come back for."""
        self._timer = None
        for stream in self.streams.expire(self._clock()):
            self._stop(stream)
        self._arm()

    def leave(self, stream: HeldStream, reader: StreamReader) -> None:
        if not self.streams.detach(stream, reader, self._clock()):
            self._stop(stream)
        self._arm()

    async def close(self) -> None:
        """End everything. Safe to repeat."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        tasks = list(self._task_by_stream.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for stream in list(self.streams):
            self.streams.remove(stream)

    async def _run(
        self, stream: HeldStream, events: AsyncGenerator[bytes], error_events: ErrorEvents | None
    ) -> None:
        log = stream.log
        try:
            async with aclosing(events):
                async for event in events:
                    self.streams.append(stream, event)
                    self._wake_readers(stream)
        except StreamMoved as moved:
            self.streams.remove(stream)  # a client that returns here takes it over again
            log.fail(moved)
            return
        except Exception as error:
            if error_events is None or not log.last_sequence:
                log.fail(error)
                return
            for event in error_events(error):
                self.streams.append_last(stream, event)
        log.close()

    def _on_end(self, stream: HeldStream, task: asyncio.Task[None]) -> None:
        """Also called for a task that was cancelled before it began."""
        del self._task_by_stream[stream]
        if not stream.log.is_ended:
            error = None if task.cancelled() else task.exception()
            if not isinstance(error, Exception):
                error = Cancelled("the stream was ended")
            stream.log.fail(error)
        self.streams.end(stream, self._clock())
        self._wake_readers(stream)
        self._arm()

    def _wake_readers(self, stream: HeldStream) -> None:
        """Wake all that wait for more of the stream."""
        stream.changed.set()
        stream.changed = asyncio.Event()

    def _stop(self, stream: HeldStream) -> None:
        task = self._task_by_stream.get(stream)
        if task is not None:
            task.cancel()

    def _arm(self) -> None:
        """Set the timer of the sweep. All windows are equally long, so a running timer is early
        enough."""
        expiry = self.streams.next_expiry() if self._timer is None else None
        if expiry is not None and not self._is_closed:
            delay_s = max(0.0, expiry - self._clock())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.sweep)


class StreamReading:
    """Enter it at once; iterate for (sequence, event). Leaving it leaves the stream. An event
    counts as sent when the next one is asked for. A stream's error is raised after its events;
    InvalidRequest if it ends before the event to read after.
    """

    def __init__(self, keeper: StreamKeeper, stream: HeldStream, last_sequence: int) -> None:
        self.stream = stream
        self._keeper = keeper
        self._reader = StreamReader(last_sequence)
        self._given = last_sequence

    def __enter__(self) -> StreamReading:
        self._keeper.streams.attach(self.stream, self._reader)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._keeper.leave(self.stream, self._reader)

    @property
    def is_at_the_end(self) -> bool:
        """Whether there is nothing left to read, and never will be."""
        log = self.stream.log
        return log.is_ended and not log.failure and self._given == log.last_sequence

    def __aiter__(self) -> StreamReading:
        return self

    async def __anext__(self) -> tuple[int, bytes]:
        log = self.stream.log
        self._reader.last_sequence = self._given
        while log.last_sequence <= self._given:
            if log.failure is not None:
                raise log.failure
            if log.is_ended:
                self._keeper.streams.check_holds_after(self.stream, self._given)
                self._keeper.streams.mark_delivered(self.stream)
                raise StopAsyncIteration
            await self.stream.changed.wait()
        self._given += 1
        self.stream.is_known = True
        return self._given, log.event(self._given)
