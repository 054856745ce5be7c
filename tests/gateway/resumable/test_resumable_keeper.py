"""Resumable streams under way: clients come and go, the generation is one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.core.clock import ManualClock
from baton.core.errors import Cancelled, Overloaded, StreamNotFound, Unavailable
from baton.gateway.resumable.keeper import StreamKeeper, StreamReading
from baton.gateway.resumable.streams import STREAM_COST_BYTES

OWNER, KIND = b"alice", "/v1/completions"
EVENTS = [f"data: {number}\n\n".encode() for number in range(1, 8)]


class Source:
    """Events that come when they are let; knows whether it was asked for all, or stopped."""

    def __init__(self, events: Sequence[bytes] = EVENTS, *, error: Exception | None = None) -> None:
        self._events = events
        self._error = error
        self._let = asyncio.Semaphore(0)
        self.num_made = 0
        self.ended = asyncio.Event()

    def let(self, num_events: int) -> None:
        for _ in range(num_events):
            self._let.release()

    def let_all(self) -> None:
        self.let(len(self._events) + 1)

    async def __call__(self) -> AsyncGenerator[bytes]:
        try:
            for event in self._events:
                await self._let.acquire()
                self.num_made += 1
                yield event
            if self._error is not None:
                await self._let.acquire()
                raise self._error
        finally:
            self.ended.set()


def keeper(clock: ManualClock | None = None, max_bytes: int = 1 << 20) -> StreamKeeper:
    return StreamKeeper(max_bytes=max_bytes, window_s=60, clock=clock or ManualClock())


async def soon(event: asyncio.Event) -> None:
    async with asyncio.timeout(120):
        await event.wait()


def begin(streams: StreamKeeper, source: Source) -> StreamReading:
    return streams.start(source(), owner=OWNER, kind=KIND)


def back(streams: StreamKeeper, stream_id: str, last_sequence: int) -> StreamReading:
    return streams.resume(stream_id, owner=OWNER, kinds={KIND}, last_sequence=last_sequence)


async def take(reading: StreamReading, num_events: int) -> list[tuple[int, bytes]]:
    return [await anext(reading) for _ in range(num_events)]


def numbered(events: Sequence[bytes]) -> list[tuple[int, bytes]]:
    return list(enumerate(events, start=1))


@pytest.mark.parametrize("break_after", range(1, len(EVENTS) + 1))
async def test_a_client_that_comes_back_gets_the_rest_wherever_it_broke(break_after: int) -> None:
    streams, source = keeper(), Source()
    source.let(break_after)
    with begin(streams, source) as reading:
        first = await take(reading, break_after)

    with back(streams, reading.stream.id, break_after) as reading:
        source.let_all()
        rest = [item async for item in reading]

    assert first + rest == numbered(EVENTS)
    assert source.num_made == len(EVENTS)
    await streams.close()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=12))
async def test_any_breaks_and_lost_events_leave_the_stream_whole(
    breaks: list[tuple[int, int]],
) -> None:
    """At each break the client has lost the last few of the events that it was sent."""
    streams, source = keeper(), Source()
    source.let_all()
    received: list[tuple[int, bytes]] = []
    with begin(streams, source) as reading:
        received += await take(reading, 1)

    for num_sent, num_lost in breaks:
        with back(streams, reading.stream.id, len(received)) as reading:
            sent = await take(reading, min(num_sent, len(EVENTS) - len(received)))
        received += sent[: max(0, len(sent) - num_lost)]
    with back(streams, reading.stream.id, len(received)) as reading:
        received += [item async for item in reading]

    assert received == numbered(EVENTS)
    assert source.num_made == len(EVENTS)
    await streams.close()


async def test_the_generation_goes_on_without_a_client() -> None:
    streams, source = keeper(), Source()
    source.let(1)
    with begin(streams, source) as reading:
        await take(reading, 1)

    source.let_all()
    await soon(source.ended)

    assert source.num_made == len(EVENTS)
    with back(streams, reading.stream.id, 0) as again:
        assert [item async for item in again] == numbered(EVENTS)
    await streams.close()


async def test_a_generation_that_nobody_comes_back_for_is_stopped() -> None:
    clock = ManualClock()
    streams, source = keeper(clock), Source()
    source.let(1)
    with begin(streams, source) as reading:
        await take(reading, 1)
    clock.advance(59)
    streams.sweep()
    assert not source.ended.is_set()

    clock.advance(1)
    streams.sweep()

    await soon(source.ended)
    assert source.num_made == 1
    assert streams.streams.num_bytes == 0
    with pytest.raises(StreamNotFound):
        back(streams, reading.stream.id, 1)


async def test_the_window_passes_by_itself() -> None:
    streams, source = StreamKeeper(max_bytes=1 << 20, window_s=0.001), Source()
    source.let(1)
    with begin(streams, source) as reading:
        await take(reading, 1)

    await soon(source.ended)

    assert len(streams.streams) == 0


async def test_a_client_that_leaves_before_the_first_event_stops_the_generation() -> None:
    streams, source = keeper(), Source()
    with begin(streams, source) as reading:
        waiting = asyncio.create_task(take(reading, 1))
        await asyncio.sleep(0)
        waiting.cancel()

    await asyncio.gather(waiting, return_exceptions=True)
    assert len(streams.streams) == 0
    await streams.close()
    assert source.num_made == 0


async def test_a_stream_left_before_its_task_has_begun_leaves_nothing_behind() -> None:
    streams, source = keeper(), Source()

    with begin(streams, source):
        pass
    await streams.close()

    assert (len(streams.streams), streams.streams.num_bytes) == (0, 0)


async def test_two_clients_may_read_one_stream_each_at_its_own_pace() -> None:
    streams, source = keeper(), Source()
    source.let_all()

    with begin(streams, source) as slow:
        first = await take(slow, 1)
        with back(streams, slow.stream.id, 0) as quick:
            assert [item async for item in quick] == numbered(EVENTS)
        rest = [item async for item in slow]

    assert first + rest == numbered(EVENTS)
    await streams.close()


async def test_a_slow_reader_holds_nobody_up() -> None:
    streams, source = keeper(), Source()
    source.let_all()

    with begin(streams, source) as reading:
        await soon(source.ended)
        assert [item async for item in reading] == numbered(EVENTS)
    await streams.close()


async def test_many_streams_do_not_mix() -> None:
    streams = keeper()
    sources = [Source([f"{name}{n}".encode() for n in range(5)]) for name in range(20)]
    for source in sources:
        source.let_all()

    async def broken_at(source: Source, index: int) -> list[bytes]:
        with begin(streams, source) as reading:
            first = await take(reading, 1 + index % 5)
        with back(streams, reading.stream.id, 1 + index % 5) as reading:
            return [event for _, event in first] + [event async for _, event in reading]

    outputs = await asyncio.gather(*(broken_at(s, i) for i, s in enumerate(sources)))

    assert outputs == [[f"{name}{n}".encode() for n in range(5)] for name in range(20)]
    await streams.close()


async def test_an_error_before_the_first_event_is_raised_and_nothing_is_kept() -> None:
    streams, source = keeper(), Source([], error=Overloaded("full"))
    source.let_all()

    with pytest.raises(Overloaded, match="full"), begin(streams, source) as reading:
        await take(reading, 1)

    assert len(streams.streams) == 0


async def test_a_later_error_is_raised_again_to_whoever_reads_the_end() -> None:
    streams, source = keeper(), Source(EVENTS[:2], error=Unavailable("gone"))
    source.let_all()
    with begin(streams, source) as reading:
        await take(reading, 1)

    for _ in range(2):
        with back(streams, reading.stream.id, 1) as again:
            assert await take(again, 1) == [(2, EVENTS[1])]
            with pytest.raises(Unavailable, match="gone"):
                await take(again, 1)
    await streams.close()


async def test_a_later_error_can_be_an_event_that_is_said_again() -> None:
    streams, source = keeper(), Source(EVENTS[:1], error=Unavailable("gone"))
    source.let_all()

    def error_events(error: Exception) -> list[bytes]:
        return [f"data: {error}\n\n".encode()]

    with streams.start(source(), owner=OWNER, kind=KIND, error_events=error_events) as reading:
        events = [item async for item in reading]
    with back(streams, reading.stream.id, 1) as again:
        rest = [item async for item in again]

    assert events == [(1, EVENTS[0]), (2, b"data: gone\n\n")]
    assert rest == events[1:]
    await streams.close()


async def test_a_generation_without_memory_and_reader_is_stopped() -> None:
    streams = keeper(max_bytes=STREAM_COST_BYTES + 200)
    source = Source()
    source.let(1)
    with begin(streams, source) as reading:
        await take(reading, 1)

    source.let_all()
    await soon(source.ended)

    assert source.num_made < len(EVENTS)
    assert streams.streams.num_bytes <= STREAM_COST_BYTES + 200
    await streams.close()


async def test_a_stream_that_its_reader_keeps_up_with_may_be_longer_than_the_memory() -> None:
    streams = keeper(max_bytes=STREAM_COST_BYTES + 200)
    source = Source()
    events = []

    with begin(streams, source) as reading:
        source.let(1)
        async for item in reading:
            events.append(item)
            source.let(1)

    assert events == numbered(EVENTS)
    await streams.close()


async def test_what_was_delivered_makes_room_for_more_than_would_fit_together() -> None:
    streams = keeper(max_bytes=2 * STREAM_COST_BYTES)

    for _ in range(20):
        source = Source()
        source.let_all()
        with begin(streams, source) as reading:
            assert [item async for item in reading] == numbered(EVENTS)

    assert len(streams.streams) == 1
    await streams.close()


async def test_a_client_that_wants_no_more_ends_the_stream() -> None:
    streams, source = keeper(), Source()
    source.let(1)
    with begin(streams, source) as reading:
        await take(reading, 1)

    streams.end(reading.stream.id, owner=OWNER, kinds={KIND})

    await soon(source.ended)
    with pytest.raises(StreamNotFound):
        streams.end(reading.stream.id, owner=OWNER, kinds={KIND})
    await streams.close()


async def test_a_stream_that_has_forgotten_its_beginning_can_be_ended() -> None:
    streams, source = keeper(max_bytes=STREAM_COST_BYTES + 200), Source()
    with begin(streams, source) as reading:
        for _ in range(5):
            source.let(1)
            await take(reading, 1)

        streams.end(reading.stream.id, owner=OWNER, kinds={KIND})
        with pytest.raises(Cancelled):
            await take(reading, 1)

    assert source.ended.is_set()


async def test_a_failure_to_write_the_error_reaches_the_reader_as_well() -> None:
    streams, source = keeper(), Source(EVENTS[:1], error=Unavailable("gone"))
    source.let_all()

    def error_events(error: Exception) -> list[bytes]:
        raise TypeError("a bug")

    with streams.start(source(), owner=OWNER, kind=KIND, error_events=error_events) as reading:
        await take(reading, 1)
        with pytest.raises(TypeError, match="a bug"):
            await take(reading, 1)
    await streams.close()


async def test_closing_ends_all_and_lets_nothing_begin() -> None:
    streams, source = keeper(), Source()
    with begin(streams, source) as reading:
        source.let(1)
        await take(reading, 1)
        await streams.close()
        with pytest.raises(Cancelled):
            await take(reading, 1)

    assert source.ended.is_set()
    assert streams.streams.num_bytes == 0
    refused = Source()()
    with pytest.raises(Unavailable):
        streams.start(refused, owner=OWNER, kind=KIND)
    await refused.aclose()
