"""Checksums over KV: one XXH3-64 per unit (layer, block, head).

A unit is K and V of one block and one head, contiguous in every layout, so a checksum stays valid
however blocks are grouped into pieces. It guards against broken memory, links and software, not
against an attacker.
"""

from __future__ import annotations

import xxhash


def unit_checksums(data: bytes | memoryview, unit_bytes: int) -> tuple[int, ...]:
    """The checksum of each unit of `data`, whose length is a multiple of `unit_bytes`."""
    view, digest = memoryview(data), xxhash.xxh3_64_intdigest
    starts = range(0, len(view), unit_bytes)
    return tuple([digest(view[start : start + unit_bytes]) for start in starts])


def combined_checksum(checksums: tuple[int, ...]) -> int:
    """One number that stands for several checksums, to remember and compare later."""
    return int(xxhash.xxh3_64_intdigest(b"".join([c.to_bytes(8, "little") for c in checksums])))
