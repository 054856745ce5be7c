"""A value in a file, and behind it what it is.

    value | facts as JSON | length of the facts, 4 bytes, big-endian | MAGIC

The facts stand at the end, so that a value can be written as it comes; and what was cut, wherever,
has none and counts as not there.
"""

from __future__ import annotations

import os
import zlib

import msgspec

MAGIC = b"batonv1\n"
TAIL_BYTES = 4 + len(MAGIC)
MAX_FACTS_BYTES = 1 << 16


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    owner: str
    """The owner id, as `Caller.owner`."""
    id: str
    num_bytes: int
    """Size of the value."""
    checksum: int
    """Its CRC32."""
    created_at: float
    """Unix seconds, as the next."""
    expires_at: float | None
    """None: it is kept until it is deleted."""

    def is_expired(self, now: float) -> bool:
        return self.expires_at is not None and self.expires_at <= now


class Garbled(ValueError):
    """A file that is not what was written."""


def encode_facts(facts: Facts) -> bytes:
    """What follows a value."""
    encoded = msgspec.json.encode(facts)
    return encoded + len(encoded).to_bytes(4, "big") + MAGIC


def read_facts(fd: int) -> Facts:
    """Raises Garbled, OSError."""
    end = os.fstat(fd).st_size
    tail = os.pread(fd, TAIL_BYTES, max(0, end - TAIL_BYTES))
    if len(tail) < TAIL_BYTES or not tail.endswith(MAGIC):
        raise Garbled("it has no end")
    length = int.from_bytes(tail[:4], "big")
    begin = end - TAIL_BYTES - length
    if length > MAX_FACTS_BYTES or begin < 0:
        raise Garbled("its end is wrong")
    try:
        facts = msgspec.json.decode(os.pread(fd, length, begin), type=Facts)
    except msgspec.DecodeError as error:
        raise Garbled("its end is wrong") from error
    if facts.num_bytes != begin:
        raise Garbled(f"it has {begin} bytes in place of {facts.num_bytes}")
    return facts


def checksum(data: bytes | memoryview, before: int = 0) -> int:
    return zlib.crc32(data, before)
