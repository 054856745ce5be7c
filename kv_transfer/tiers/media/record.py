"""One block as a tier keeps it: its name, its bytes in all planes, and the checksums of its units.

    payload    [planes][KV heads][2][block size][head dim]       of each plane what it has
    checksums  [planes][KV heads]

As a file or an object:

    magic | version | number of checksums | name | layout digest | payload bytes      48 + 8 bytes
    checksums, 8 bytes each
    XXH3-64 of all of the above
    payload

The length follows from the layout, so a file that is torn, cut short or grown is recognised at
once; the last checksum guards the header and the checksums guard the payload. A record is trusted
only if it fits the layout and the name by which it was requested.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, fields
from hashlib import blake2b

import xxhash

from baton.core.block_hash import DIGEST_BYTES
from baton.core.errors import CorruptPiece
from baton.core.kv_layout import KvLayout
from baton.kv_transfer.layouts.integrity import CHECKSUM_BYTES, unit_checksums

MAGIC = b"BATON-KV"
VERSION = 1
"""Also part of every path: a newer version writes elsewhere, and neither deletes the other's."""

_FIXED = struct.Struct("<8sII16s16sQ")
_RECORD_NAME = re.compile(r"[0-9a-f]{32}-[0-9a-f]{32}\.kv")
_CHECKSUM = struct.Struct("<Q")


@dataclass(frozen=True, slots=True, eq=False)
class BlockRecord:
    name: bytes
    checksums: bytes
    """As in `integrity`."""
    payload: memoryview

    @property
    def num_bytes(self) -> int:
        return self.payload.nbytes + len(self.checksums)


class RecordFormat:
    """How blocks of one layout are written. Other layouts have other digests, hence other files."""

    def __init__(self, layout: KvLayout) -> None:
        self.layout = layout
        self.num_checksums = sum(plane.num_kv_heads for plane in layout.planes)
        self.digest = layout_digest(layout)
        self._is_even = len({plane.unit_bytes for plane in layout.planes}) == 1
        self._header_bytes = _FIXED.size + _CHECKSUM.size * (self.num_checksums + 1)

    @property
    def record_bytes(self) -> int:
        """The bytes of one block in memory, its checksums included."""
        return self.layout.block_bytes + CHECKSUM_BYTES * self.num_checksums

    @property
    def file_bytes(self) -> int:
        return self._header_bytes + self.layout.block_bytes

    def file_name(self, name: bytes) -> str:
        """Two letters of the name are the folder, so that no folder grows huge."""
        return f"{name.hex()[:2]}/{name.hex()}-{self.digest.hex()}.kv"

    def is_ours(self, file_name: str) -> bool:
        """Whether a record's file is of this layout."""
        return file_name.endswith(f"-{self.digest.hex()}.kv")

    def make(self, name: bytes, payload: bytes | bytearray) -> BlockRecord:
        """Checksums are computed here, from the bytes that are kept."""
        view = memoryview(payload).toreadonly()
        return BlockRecord(name, self._checksums(view), view)

    def is_whole(self, record: BlockRecord) -> bool:
        """Whether the bytes still are what the checksums say."""
        if record.payload.nbytes != self.layout.block_bytes:
            return False
        return self._checksums(record.payload) == record.checksums

    def encode(self, record: BlockRecord) -> tuple[bytes, memoryview]:
        """The header and the payload."""
        fixed = _FIXED.pack(
            MAGIC, VERSION, self.num_checksums, record.name, self.digest, record.payload.nbytes
        )
        header = fixed + record.checksums
        return header + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(header)), record.payload

    def decode(self, data: bytes | bytearray, name: bytes) -> BlockRecord:
        """Raises CorruptPiece for anything but a whole record of this layout and this name."""
        if len(data) != self.file_bytes:
            raise CorruptPiece(f"{len(data)} bytes where {self.file_bytes} are a block")
        view = memoryview(data).toreadonly()
        header, payload = view[: self._header_bytes], view[self._header_bytes :]
        (expected,) = _CHECKSUM.unpack(header[-_CHECKSUM.size :])
        if xxhash.xxh3_64_intdigest(header[: -_CHECKSUM.size]) != expected:
            raise CorruptPiece("its header does not match its checksum")
        ours = (MAGIC, VERSION, self.num_checksums, name, self.digest, payload.nbytes)
        if _FIXED.unpack(header[: _FIXED.size]) != ours:
            raise CorruptPiece("its header is of another format, layout or block")
        checksums = bytes(header[_FIXED.size : -_CHECKSUM.size])
        record = BlockRecord(name, checksums, payload)
        if not self.is_whole(record):
            raise CorruptPiece("its bytes do not match their checksums")
        return record

    def planes(self, record: BlockRecord) -> Iterator[tuple[memoryview, bytes]]:
        """The bytes of each, and the checksums of its units."""
        first = 0
        for plane, data in zip(self.layout.planes, self._split(record.payload), strict=True):
            stop = first + CHECKSUM_BYTES * plane.num_kv_heads
            yield data, record.checksums[first:stop]
            first = stop

    def _checksums(self, payload: memoryview) -> bytes:
        if self._is_even:
            return unit_checksums(payload, self.layout.unit_bytes)
        parts = zip(self._split(payload), self.layout.planes, strict=True)
        return b"".join([unit_checksums(part, plane.unit_bytes) for part, plane in parts])

    def _split(self, payload: memoryview) -> Iterator[memoryview]:
        start = 0
        for plane in self.layout.planes:
            yield payload[start : start + plane.layer_block_bytes]
            start += plane.layer_block_bytes


def is_record_name(base_name: str) -> bool:
    """Whether a file is called as `RecordFormat.file_name` of any layout would call it."""
    return _RECORD_NAME.fullmatch(base_name) is not None


def block_name(file_name: str) -> bytes:
    """The block that a record's file is about."""
    return bytes.fromhex(file_name.rpartition("/")[2].partition("-")[0])


def layout_digest(layout: KvLayout) -> bytes:
    """Equal for equal layouts, in any process, and versions that knew nothing of features."""
    said = [f"{field.name}={getattr(layout, field.name)!r}" for field in fields(layout)]
    if layout.features is None:
        said.remove("features=None")
    return blake2b("\n".join(said).encode(), digest_size=DIGEST_BYTES).digest()
