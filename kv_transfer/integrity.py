"""Checksums over KV: one XXH3-64 per unit (layer, block, head).

A unit is K and V of one block and one head, contiguous in every layout, so a checksum stays valid
however blocks are grouped into pieces. It guards against broken memory, links and software, not
against an attacker.
"""

from __future__ import annotations

from typing import NamedTuple

import xxhash

from baton.core.kv_layout import KvLayout
from baton.kv_transfer.messages import KvPiece


class Unit(NamedTuple):
    """Which part of a piece's layer."""

    block: int
    head: int


def unit_checksums(data: bytes | memoryview, unit_bytes: int) -> tuple[int, ...]:
    """The checksum of each unit of `data`, whose length is a multiple of `unit_bytes`."""
    view = memoryview(data)
    return tuple(
        xxhash.xxh3_64_intdigest(view[start : start + unit_bytes])
        for start in range(0, len(view), unit_bytes)
    )


def bad_units(piece: KvPiece, layout: KvLayout) -> list[Unit]:
    """The units of a well-formed piece whose bytes do not match their checksums."""
    actual = unit_checksums(piece.data, layout.unit_bytes)
    return [
        Unit(piece.first_block + index // layout.num_kv_heads, index % layout.num_kv_heads)
        for index, (got, expected) in enumerate(zip(actual, piece.checksums, strict=True))
        if got != expected
    ]


def combined_checksum(checksums: tuple[int, ...]) -> int:
    """One number that stands for several checksums, to remember and compare later."""
    return int(xxhash.xxh3_64_intdigest(b"".join(c.to_bytes(8, "little") for c in checksums)))
