"""Checksums over KV: one XXH3-64 per unit (plane, block, head).

A unit is K and V of one block and one head, or its latents, contiguous in every layout, so a
checksum stays valid however blocks are grouped into pieces. It guards against broken memory, links
and software, not against an attacker.

    checksums   8 bytes for each unit, the lowest first, one after the other: as computed, as sent
                and as compared. None of them becomes a Python number on the way
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import torch
import xxhash
from torch import Tensor

from baton.core.block_views import num_bytes_of
from baton.core.rank_memory import RankRows
from baton.kernels.paging import checksum
from baton.kernels.paging.checksum import Buffer

CHECKSUM_BYTES = 8


def unit_checksums(data: Buffer, unit_bytes: int) -> bytes:
    """The checksum of each unit of `data`, whose length is a multiple of `unit_bytes`."""
    return checksums_of((data,), unit_bytes)


def checksums_of(parts: Sequence[Buffer], unit_bytes: int) -> bytes:
    """The checksums of the units of several parts, one after the other."""
    if checksum.is_compiled():
        return checksum.checksums(parts, unit_bytes)
    return b"".join([_digests(memoryview(part), unit_bytes) for part in parts])


def copied_checksums(
    sources: Sequence[Buffer], targets: Sequence[memoryview], unit_bytes: int
) -> bytes:
    """Copy each source to the target of its length; the checksums are of the targets' units.

    What comes from memory that another process can write to may change while it is read: only the
    copy stays as it was verified.
    """
    if checksum.is_compiled():
        return checksum.copy_checksums(sources, targets, unit_bytes)
    for source, target in zip(sources, targets, strict=True):
        target[:] = source
    return checksums_of(targets, unit_bytes)


def checksums_on_device(rows: Tensor | RankRows, unit_bytes: int) -> bytes | None:
    """The checksums of the units of uint8 [blocks, bytes], computed on their device, beside its
    other work; None for units that no device sums up."""
    if not checksum.can_sum_up(unit_bytes):
        return None
    if not isinstance(rows, Tensor):
        return rows.checksums(unit_bytes)
    if not rows.is_cuda:
        return checksum.row_checksums((rows,), unit_bytes)[0]
    own = torch.cuda.Stream(rows.device)  # type: ignore[no-untyped-call]
    with torch.cuda.device(rows.device), torch.cuda.stream(own):
        return checksum.row_checksums((rows,), unit_bytes)[0]


def copied_together(
    copies: Sequence[tuple[Sequence[memoryview], Sequence[memoryview]]], unit_bytes: int
) -> list[bytes]:
    """`copied_checksums` of each (sources, targets), in one call where it is compiled."""
    if not checksum.is_compiled():
        return [copied_checksums(sources, targets, unit_bytes) for sources, targets in copies]
    sources, targets = [each for each, _ in copies], [each for _, each in copies]
    sums = checksum.copy_checksums(sources, targets, unit_bytes)
    return _cut(sums, targets, unit_bytes)


def checksums_together(groups: Sequence[Sequence[memoryview]], unit_bytes: int) -> list[bytes]:
    """`checksums_of` each of the groups, in one call where it is compiled."""
    if not checksum.is_compiled():
        return [checksums_of(group, unit_bytes) for group in groups]
    return _cut(checksum.checksums(groups, unit_bytes), groups, unit_bytes)


def _cut(checksums: bytes, groups: Sequence[Sequence[memoryview]], unit_bytes: int) -> list[bytes]:
    """The checksums of all groups, by group."""
    found: list[bytes] = []
    start = 0
    for group in groups:
        stop = start + num_bytes_of(group) // unit_bytes * CHECKSUM_BYTES
        found.append(checksums[start:stop])
        start = stop
    return found


def _digests(view: memoryview, unit_bytes: int) -> bytes:
    starts, digest = range(0, len(view), unit_bytes), xxhash.xxh3_64_intdigest
    digests = [digest(view[start : start + unit_bytes]) for start in starts]
    return struct.pack(f"<{len(digests)}Q", *digests)


def own_checksum(checksums: bytes) -> bytes:
    """The checksum of all these checksums: it tells whether they were damaged on their way."""
    return struct.pack("<Q", xxhash.xxh3_64_intdigest(checksums))


def with_own_checksum(checksums: bytes) -> bytes:
    """The checksums, and behind them their own."""
    return checksums + own_checksum(checksums)


def without_own_checksum(data: bytes) -> bytes | None:
    """The checksums that `with_own_checksum` was given; None if they were damaged."""
    checksums, own = data[:-CHECKSUM_BYTES], data[-CHECKSUM_BYTES:]
    return checksums if own == own_checksum(checksums) else None


def combined_checksums(checksums: bytes, num_each: int) -> bytes:
    """The combined checksum of each so many, one after the other."""
    return unit_checksums(checksums, CHECKSUM_BYTES * num_each) if num_each > 1 else checksums
