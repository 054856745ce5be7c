"""Which resumable streams a gateway holds, for whom, until when, and in how much memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.core.errors import InvalidRequest, Overloaded, StreamNotFound
from baton.gateway.resumable.log import StreamLog, cost_of
from baton.gateway.resumable.streams import (
    STREAM_COST_BYTES,
    HeldStream,
    ResumableStreams,
    StreamReader,
    event_id,
    owner_of,
    parse_event_id,
)

ALICE, BOB = owner_of("Bearer alice"), owner_of("Bearer bob")
KIND = "/v1/completions"
EVENT = b"data: x\n\n"


def table(max_bytes: int = 1 << 20) -> ResumableStreams:
    return ResumableStreams(max_bytes=max_bytes, window_s=60)


def opened(streams: ResumableStreams, num_events: int = 0, now: float = 0) -> HeldStream:
    stream = streams.open(owner=ALICE, kind=KIND, now=now)
    for _ in range(num_events):
        streams.append(stream, EVENT)
    return stream


def read(streams: ResumableStreams, stream: HeldStream, sent: int, now: float = 0) -> StreamReader:
    reader = StreamReader(sent)
    stream.is_known = stream.is_known or sent > 0
    streams.attach(stream, reader)
    return reader


@given(st.lists(st.binary(max_size=20), max_size=30), st.data())
def test_a_log_says_again_what_follows_any_event_it_still_holds(
    events: list[bytes], data: st.DataObject
) -> None:
    log = StreamLog()
    numbers = [log.append(event) for event in events]
    forgotten = data.draw(st.integers(0, len(events)))
    log.forget_through(forgotten)

    assert numbers == list(range(1, len(events) + 1))
    for after in range(len(events) + 1):
        assert log.holds_after(after) == (after >= forgotten)
        if log.holds_after(after):
            said = [log.event(number) for number in range(after + 1, log.last_sequence + 1)]
            assert said == events[after:]
    assert log.num_bytes == sum(map(cost_of, events[forgotten:]))


def test_a_stream_is_found_by_its_id_and_key() -> None:
    streams = table()
    stream = opened(streams, num_events=3)

    assert streams.find(stream.id, owner=ALICE, kinds={KIND}) is stream


@pytest.mark.parametrize("who", ["another key", "another id", "another path"])
def test_what_a_caller_may_not_read_looks_as_if_it_were_not_there(who: str) -> None:
    streams = table()
    stream = opened(streams, num_events=1)
    stream_id = "guessed" if who == "another id" else stream.id
    owner = BOB if who == "another key" else ALICE
    kinds = {"/v1/chat/completions"} if who == "another path" else {KIND}

    with pytest.raises(StreamNotFound) as caught:
        streams.find(stream_id, owner=owner, kinds=kinds)

    assert str(caught.value).startswith("this gateway does not hold that stream")


def test_an_event_that_was_never_sent_is_the_callers_mistake() -> None:
    streams = table()
    stream = opened(streams, num_events=3)

    with pytest.raises(InvalidRequest, match="3 events so far") as caught:
        streams.check_holds_after(stream, 4)

    assert not isinstance(caught.value, StreamNotFound)


def test_ids_cannot_be_guessed_and_never_repeat() -> None:
    streams = table()

    ids = {opened(streams).id for _ in range(100)}

    assert len(ids) == 100
    assert all(len(stream_id) >= 22 for stream_id in ids)  # 128 bits in base 64


def test_a_window_begins_when_the_last_reader_leaves() -> None:
    streams = table()
    stream = opened(streams, num_events=1)
    first, second = read(streams, stream, 1), read(streams, stream, 1)
    assert streams.detach(stream, first, now=100)
    assert streams.expire(now=1000) == []

    assert streams.detach(stream, second, now=1000)

    assert streams.next_expiry() == 1060
    assert streams.expire(now=1059) == []
    assert streams.expire(now=1060) == [stream]
    assert (len(streams), streams.num_bytes) == (0, 0)


def test_a_client_that_comes_back_stops_the_window() -> None:
    streams = table()
    stream = opened(streams, num_events=1)
    streams.detach(stream, read(streams, stream, 1), now=0)

    read(streams, stream, 1)

    assert streams.expire(now=10_000) == []


def test_a_stream_that_ends_alone_is_kept_for_a_window_from_then() -> None:
    streams = table()
    stream = opened(streams, num_events=1)
    streams.detach(stream, read(streams, stream, 1), now=0)

    streams.end(stream, now=50)

    assert streams.next_expiry() == 110


def test_a_stream_that_nobody_was_sent_an_event_of_goes_at_once() -> None:
    streams = table()
    stream = opened(streams, num_events=1)

    assert not streams.detach(stream, read(streams, stream, 0), now=0)

    assert (len(streams), streams.num_bytes) == (0, 0)


def test_a_stream_that_does_not_fit_is_refused_until_another_expires() -> None:
    streams = table(max_bytes=2 * STREAM_COST_BYTES)
    opened(streams, now=0)
    opened(streams, now=10)

    with pytest.raises(Overloaded, match="memory for resumable streams") as caught:
        opened(streams, now=20)

    assert caught.value.retry_after_s == 40
    streams.expire(now=60)
    opened(streams, now=60)


def test_streams_that_were_read_to_their_end_make_room_the_oldest_first() -> None:
    streams = table(max_bytes=3 * STREAM_COST_BYTES)
    unread, first, second = opened(streams), opened(streams), opened(streams)
    for stream in (second, first):
        reader = read(streams, stream, 1)
        streams.mark_delivered(stream)
        streams.detach(stream, reader, now=0)

    new = opened(streams)

    assert list(streams) == [unread, first, new]
    assert streams.num_bytes == 3 * STREAM_COST_BYTES


def test_a_stream_that_is_being_read_again_does_not_make_room() -> None:
    streams = table(max_bytes=STREAM_COST_BYTES)
    stream = opened(streams)
    streams.mark_delivered(stream)
    read(streams, stream, 1)

    with pytest.raises(Overloaded):
        opened(streams)

    assert list(streams) == [stream]


def test_a_stream_that_outgrows_the_memory_forgets_what_its_readers_have() -> None:
    streams = table(max_bytes=STREAM_COST_BYTES + 4 * cost_of(EVENT))
    stream = opened(streams, num_events=4)
    ahead, behind = read(streams, stream, 4), read(streams, stream, 3)

    streams.append(stream, EVENT)

    assert streams.num_bytes == STREAM_COST_BYTES + 2 * cost_of(EVENT)
    assert (ahead.last_sequence, behind.last_sequence) == (4, 3)
    streams.check_holds_after(stream, 3)
    with pytest.raises(StreamNotFound, match="forgotten"):
        streams.check_holds_after(stream, 2)


def test_a_stream_that_outgrows_the_memory_unread_fails() -> None:
    streams = table(max_bytes=STREAM_COST_BYTES + 4 * cost_of(EVENT))
    stream = opened(streams, num_events=4)

    with pytest.raises(Overloaded):
        streams.append(stream, EVENT)

    streams.append_last(stream, b"data: error\n\n")
    assert stream.log.last_sequence == 5


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["open", "append", "attach", "leave", "deliver", "expire"]),
            st.integers(0, 3),
        ),
        max_size=60,
    )
)
def test_the_bytes_counted_are_those_of_the_streams_held(steps: list[tuple[str, int]]) -> None:
    streams = table(max_bytes=6000)
    places: list[tuple[HeldStream, StreamReader]] = []
    for now, (step, index) in enumerate(steps):
        held = list(streams)
        if step == "expire":
            streams.expire(now * 20)
        elif step == "leave" and places:
            streams.detach(*places.pop(index % len(places)), now * 20)
        elif step == "open":
            try:
                held.append(opened(streams, now=now * 20))
            except Overloaded:
                assert streams.num_bytes + STREAM_COST_BYTES > 6000
        elif held:
            stream = held[index % len(held)]
            if step == "deliver":
                streams.mark_delivered(stream)
            elif step == "attach":
                sent = stream.log.last_sequence
                places.append((stream, read(streams, stream, sent)))
            else:
                try:
                    streams.append(stream, b"x" * 700)
                except Overloaded:
                    streams.remove(stream)
                    places = [place for place in places if place[0] is not stream]

        assert streams.num_bytes == sum(stream.num_bytes for stream in streams) <= 6000


@given(st.text("abc-_", min_size=1), st.integers(0, 10**17))
def test_event_ids_are_read_as_they_were_written(stream_id: str, sequence: int) -> None:
    assert parse_event_id(event_id(stream_id, sequence)) == (stream_id, sequence)


@pytest.mark.parametrize(
    "text", ["", "abc", ":1", "abc:", "abc:-1", "abc:1.5", "abc:²", "a:" + "9" * 30]
)
def test_what_is_no_event_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="Last-Event-ID"):
        parse_event_id(text)
