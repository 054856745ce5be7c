"""The resumable streams of this gateway: owners, readers and expiry.

    opened -> read by clients <-> held, without a client -> expired: taken off, its generation ended
                    |                                          after `window_s`
                    +-> left before anything was sent: no client knows its id, so it ends at once

Several clients may read one stream, since a broken connection may look alive for minutes after its
client has returned. A stream's window begins when its last reader leaves, or when it ends without
one.

All streams together keep at most `max_bytes`. When that is full, streams that have been read to
their end are dropped, the oldest first. After that a new stream is refused; a growing one forgets
events that its readers already have, and fails if it has no reader.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Container, Iterator
from dataclasses import dataclass, field

from baton.core.errors import InvalidRequest, Overloaded, StreamNotFound
from baton.core.wording import count_of
from baton.gateway.resumable.log import StreamLog, cost_of

STREAM_COST_BYTES = 1024
"""Memory overhead of a stream."""
ID_BYTES = 24
LAST_EVENT_ID = "Last-Event-ID"


@dataclass(eq=False, slots=True)
class StreamReader:
    """One client's place in a stream."""

    last_sequence: int
    """The sequence number of the last event sent to it."""


@dataclass(eq=False, slots=True)
class HeldStream:
    id: str
    owner: bytes
    kind: str
    """The path or method that opened it, which sets the format of its events."""
    log: StreamLog = field(default_factory=StreamLog)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set, and replaced by a new one, when the log has grown or ended."""
    readers: set[StreamReader] = field(default_factory=set)
    expires_at: float | None = None
    """When it expires; None while it has readers."""
    is_known: bool = False
    """Whether a client has been given an event, and with it the id."""

    @property
    def num_bytes(self) -> int:
        return STREAM_COST_BYTES + self.log.num_bytes


class ResumableStreams:
    """The table of streams. Pure: runs nothing itself."""

    def __init__(self, *, max_bytes: int, window_s: float) -> None:
        self.max_bytes = max_bytes
        self.window_s = window_s
        self._stream_by_id: dict[str, HeldStream] = {}
        self._delivered: dict[HeldStream, None] = {}
        """Streams read to their end, in that order."""
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._stream_by_id)

    def __iter__(self) -> Iterator[HeldStream]:
        return iter(self._stream_by_id.values())

    def open(
        self, *, owner: bytes, kind: str, now: float, stream_id: str | None = None
    ) -> HeldStream:
        """`stream_id`: set for a stream that began elsewhere. Raises Overloaded if the memory is
        full.
        """
        if not self._has_room_for(STREAM_COST_BYTES):
            expiry = self.next_expiry()
            raise Overloaded(
                "this gateway's memory for resumable streams is full; "
                "ask again later, or for a stream that is not resumable",
                retry_after_s=1.0 if expiry is None else max(1.0, expiry - now),
            )
        assert stream_id not in self._stream_by_id, "a stream is begun here once"
        stream = HeldStream(id=stream_id or new_stream_id(), owner=owner, kind=kind)
        stream.expires_at = now + self.window_s  # a reader attaches right after
        self._stream_by_id[stream.id] = stream
        self.num_bytes += stream.num_bytes
        return stream

    def find(self, stream_id: str, *, owner: bytes, kinds: Container[str]) -> HeldStream:
        """Raises StreamNotFound, with the same message for unknown streams and those of other
        owners."""
        stream = self._stream_by_id.get(stream_id)
        if (
            stream is None
            or not hmac.compare_digest(stream.owner, owner)
            or stream.kind not in kinds
        ):
            raise unknown_stream()
        return stream

    def holds(self, stream_id: str) -> bool:
        """Whether the stream is here, of any owner."""
        return stream_id in self._stream_by_id

    def check_holds_after(self, stream: HeldStream, last_sequence: int) -> None:
        """Raises InvalidRequest for an event that does not exist yet, StreamNotFound for forgotten
        ones."""
        if last_sequence > stream.log.last_sequence:
            raise InvalidRequest(
                f"the stream has {count_of(stream.log.last_sequence, 'event')} so far, and event "
                f"{last_sequence} is not one of them",
                field="last_sequence",
            )
        if not stream.log.holds_after(last_sequence):
            raise StreamNotFound(
                f"what followed event {last_sequence} has been forgotten: the memory for resumable "
                "streams was full",
                field="last_sequence",
            )

    def append(self, stream: HeldStream, event: bytes) -> None:
        """Raises Overloaded if the stream has to end for lack of memory."""
        if not self._has_room_for(cost_of(event)):
            self._drop_sent(stream)
            if not self._has_room_for(cost_of(event)):
                raise Overloaded("no memory is left to keep this stream while nobody reads it")
        self.append_last(stream, event)

    def append_last(self, stream: HeldStream, event: bytes) -> None:
        """Append the event that ends the stream; always possible."""
        stream.log.append(event)
        if self._has(stream):  # not dropped while its generation was being ended
            self.num_bytes += cost_of(event)

    def attach(self, stream: HeldStream, reader: StreamReader) -> None:
        stream.readers.add(reader)
        stream.expires_at = None

    def detach(self, stream: HeldStream, reader: StreamReader, now: float) -> bool:
        """Detach a reader; whether the stream continues: not if no client can know its id."""
        stream.readers.discard(reader)
        if not stream.is_known:
            self.remove(stream)
            return False
        if not stream.readers:
            stream.expires_at = now + self.window_s
        return True

    def mark_delivered(self, stream: HeldStream) -> None:
        """A reader has received all of it."""
        if self._has(stream):
            self._delivered[stream] = None

    def end(self, stream: HeldStream, now: float) -> None:
        """Its log has ended. It is kept for the window, if it has events."""
        if not stream.readers:
            stream.expires_at = now + self.window_s

    def remove(self, stream: HeldStream) -> None:
        if self._has(stream):
            del self._stream_by_id[stream.id]
            self.num_bytes -= stream.num_bytes
            self._delivered.pop(stream, None)

    def expire(self, now: float) -> list[HeldStream]:
        """Drop the expired streams."""
        expired = [s for s in self if s.expires_at is not None and s.expires_at <= now]
        for stream in expired:
            self.remove(stream)
        return expired

    def next_expiry(self) -> float | None:
        return min((s.expires_at for s in self if s.expires_at is not None), default=None)

    def _has(self, stream: HeldStream) -> bool:
        """Whether this very stream is in the table, not another one of the same id."""
        return self._stream_by_id.get(stream.id) is stream

    def _has_room_for(self, num_bytes: int) -> bool:
        """Whether there is room, after dropping streams that were read to their end."""
        limit = self.max_bytes - num_bytes
        while self.num_bytes > limit:
            oldest = next((stream for stream in self._delivered if not stream.readers), None)
            if oldest is None:
                return False
            self.remove(oldest)
        return True

    def _drop_sent(self, stream: HeldStream) -> None:
        if not stream.readers:
            return
        before = stream.num_bytes
        stream.log.forget_through(min(reader.last_sequence for reader in stream.readers))
        self.num_bytes -= before - stream.num_bytes


def unknown_stream() -> StreamNotFound:
    return StreamNotFound(
        "this gateway does not hold that stream: it has expired, or another gateway has it",
        field="stream_id",
    )


def new_stream_id() -> str:
    return secrets.token_urlsafe(ID_BYTES)


def owner_of(authorization: str | None) -> bytes:
    """The owner id of a stream, a hash of the key: only the same key may resume it."""
    key = (authorization or "").partition(" ")[2].strip()
    return hashlib.sha256(key.encode()).digest()


def parse_event_id(text: str) -> tuple[str, int]:
    """`<stream id>:<sequence>`. Raises InvalidRequest."""
    stream_id, _, number = text.strip().rpartition(":")
    if not stream_id or not (number.isascii() and number.isdecimal()) or len(number) > 18:
        raise InvalidRequest(
            f"{LAST_EVENT_ID} must be the id of an event, as the stream gave it",
            field=LAST_EVENT_ID,
        )
    return stream_id, int(number)


def event_id(stream_id: str, sequence: int) -> str:
    return f"{stream_id}:{sequence}"
