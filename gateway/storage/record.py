"""The file format: a value, followed by its metadata.

    value | metadata as JSON | length of the metadata, 4 bytes, big-endian | MAGIC

The metadata is at the end, so that a value can be streamed; a truncated file has none and counts as
missing.
"""

from __future__ import annotations

import os
import zlib

import msgspec

MAGIC = b"batonv1\n"
TAIL_BYTES = 4 + len(MAGIC)
MAX_METADATA_BYTES = 1 << 16


class Metadata(msgspec.Struct, frozen=True, kw_only=True):
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
    """None: kept until deleted."""

    def is_expired(self, now: float) -> bool:
        return self.expires_at is not None and self.expires_at <= now


class CorruptRecord(ValueError):
    """The file's content is not what was written."""


def encode_metadata(metadata: Metadata) -> bytes:
    """The bytes that follow a value."""
    encoded = msgspec.json.encode(metadata)
    return encoded + len(encoded).to_bytes(4, "big") + MAGIC


def read_metadata(fd: int) -> Metadata:
    """Raises CorruptRecord, OSError."""
    end = os.fstat(fd).st_size
    tail = os.pread(fd, TAIL_BYTES, max(0, end - TAIL_BYTES))
    if len(tail) < TAIL_BYTES or not tail.endswith(MAGIC):
        raise CorruptRecord("a stored file is damaged: it is cut short")
    length = int.from_bytes(tail[:4], "big")
    begin = end - TAIL_BYTES - length
    if length > MAX_METADATA_BYTES or begin < 0:
        raise CorruptRecord("a stored file is damaged: its end cannot be read")
    try:
        metadata = msgspec.json.decode(os.pread(fd, length, begin), type=Metadata)
    except msgspec.DecodeError as error:
        raise CorruptRecord("a stored file is damaged: its end cannot be read") from error
    if metadata.num_bytes != begin:
        raise CorruptRecord(
            f"a stored file is damaged: it has {begin} bytes in place of {metadata.num_bytes}"
        )
    return metadata


def checksum(data: bytes | memoryview, before: int = 0) -> int:
    return zlib.crc32(data, before)
