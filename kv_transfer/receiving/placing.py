"""Writes the bytes of a piece to their place and verifies them. Runs on a worker thread.

    equal layouts   piece --copied and verified in one pass--> D's blocks
      on a device   piece --likewise--> pinned scratch --one copy, one launch--> D's blocks
                    piece on that device --checksums there--> D's blocks
    others          piece --likewise--> scratch --> converted --> D's blocks

A piece that has yet to arrive (`ArrivingBlocks`) is read into the same places, and verified there.

Verification always reads D's own memory, never the piece itself, which may refer to memory that its
sender can still write. So the bytes that were verified are the bytes that stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from baton.core.block_views import ArrivingBlocks, BlockViews, DeviceBlocks, part_of
from baton.core.kv_pool import DeviceWrite
from baton.kernels.paging.checksum import differing
from baton.kv_transfer.layouts.convert import converted
from baton.kv_transfer.layouts.integrity import (
    CHECKSUM_BYTES,
    checksums_of,
    copied_checksums,
    copied_together,
)
from baton.kv_transfer.receiving.filling import Fill


class Unit(NamedTuple):
    """Which part of a piece's plane."""

    block: int
    head: int
    """The head's number among those that travel."""


def place(fill: Fill) -> list[Unit]:
    """Write the fill's blocks; return the units that are not what their sender computed."""
    return place_together((fill,)).get(fill, [])


def place_together(fills: Sequence[Fill]) -> dict[Fill, list[Unit]]:
    """Write the blocks of all fills; return, of each that came out wrong, the wrong units."""
    bad: dict[Fill, list[Unit]] = {}
    directly: dict[int, list[Fill]] = {}
    in_rows: dict[int, list[Fill]] = {}
    for fill in fills:
        if fill.placement.is_direct and fill.is_in_memory:
            directly.setdefault(fill.placement.arriving.unit_bytes, []).append(fill)
        elif _are_rows(fill):
            in_rows.setdefault(fill.placement.arriving.unit_bytes, []).append(fill)
        elif _are_whole_blocks(fill):
            if units := _place_on_device(fill):
                bad[fill] = units
        elif units := [unit for each in fill.by_plane() for unit in _place_by_scratch(each)]:
            bad[fill] = units
    for unit_bytes, of_one_size in directly.items():
        bad |= _place_directly(of_one_size, unit_bytes)
    for unit_bytes, of_one_size in in_rows.items():
        bad |= _place_rows(of_one_size, unit_bytes)
    return bad


def erase(fill: Fill) -> None:
    """Zeros where the fill's blocks were written and are not to be trusted after all: attention
    reads unused slots, which must be finite."""
    size = fill.placement.arriving.layer_block_bytes
    if fill.placement.is_direct and fill.is_in_memory:
        for target in _targets(fill):
            target[:] = bytes(size)
        return
    zeros = memoryview(bytes(size))
    for each in fill.by_plane():
        for block in fill.blocks:
            _regroup(each, block, zeros)


def _place_directly(fills: Sequence[Fill], unit_bytes: int) -> dict[Fill, list[Unit]]:
    copies = [(fill.views(fill.blocks), _targets(fill)) for fill in fills]
    if any(isinstance(views, ArrivingBlocks) for views, _ in copies):
        found = [_written(views, targets, unit_bytes) for views, targets in copies]
    else:
        found = copied_together(copies, unit_bytes)
    bad: dict[Fill, list[Unit]] = {}
    for fill, (_, targets), actual in zip(fills, copies, found, strict=True):
        bad_by_target = _compared(fill, fill.blocks, actual)
        for index in bad_by_target:
            # Attention reads unused slots: they must be finite.
            targets[index][:] = bytes(fill.placement.arriving.layer_block_bytes)
        if bad_by_target:
            bad[fill] = [unit for units in bad_by_target.values() for unit in units]
    return bad


def _targets(fill: Fill) -> Sequence[memoryview]:
    placement = fill.placement
    whole = fill.targets.views(fill.blocks, fill.piece.planes)
    return part_of(whole, placement.offset, placement.arriving.layer_block_bytes)


def _are_whole_blocks(fill: Fill) -> bool:
    """Each block that arrives is all of a block of D's."""
    placement = fill.placement
    return (
        placement.is_direct and placement.arriving.num_kv_heads == placement.receiver.num_kv_heads
    )


def _place_on_device(fill: Fill) -> list[Unit]:
    """All blocks together: to reach a device costs as much for one as for many."""
    if not fill.blocks:  # all of them have come before
        return []
    size = fill.placement.arriving.layer_block_bytes
    own = fill.targets.scratch(len(fill.piece.planes) * len(fill.blocks) * size)
    targets = BlockViews(own, range(0, own.nbytes, size), size)
    actual = _written(fill.views(fill.blocks), targets, fill.placement.arriving.unit_bytes)
    bad_by_target = _compared(fill, fill.blocks, actual)
    for index in bad_by_target:
        targets[index][:] = bytes(size)  # they must be finite, as above
    fill.targets.write_blocks(fill.blocks, fill.piece.planes, own)
    return [unit for units in bad_by_target.values() for unit in units]


def _are_rows(fill: Fill) -> bool:
    """Whole blocks that have come, all of their piece, to the device where they belong."""
    views, unit_bytes = fill.piece.views, fill.placement.arriving.unit_bytes
    return (
        isinstance(views, DeviceBlocks)
        and len(fill.blocks) == fill.piece.num_blocks
        and _are_whole_blocks(fill)
        and fill.targets.takes_rows(views.rows, unit_bytes)
    )


def _place_rows(fills: Sequence[Fill], unit_bytes: int) -> dict[Fill, list[Unit]]:
    """Write fills whose bytes are on the blocks' device already: only checksums come to this host.

    All fills go together: the device is waited for twice, however many they are.
    """
    writes = [
        DeviceWrite(fill.blocks, fill.piece.planes, fill.piece.views.rows, fill.piece.checksums)
        for fill in fills
        if isinstance(fill.piece.views, DeviceBlocks)
    ]
    found = fills[0].targets.write_rows(writes, unit_bytes)  # of one lease
    return {
        fill: [unit for units in _by_target(fill, fill.blocks, wrong).values() for unit in units]
        for fill, wrong in zip(fills, found, strict=True)
        if wrong
    }


def _place_by_scratch(fill: Fill) -> list[Unit]:
    """Block by block: so little memory comes from the heap and goes back to it."""
    bad: list[Unit] = []
    own = memoryview(bytearray(fill.placement.arriving.layer_block_bytes))
    for block in fill.blocks:
        if found := _copy(fill, block, own):
            bad += found
        else:
            _regroup(fill, block, own)
    return bad


def _regroup(fill: Fill, block: int, own: memoryview) -> None:
    placement, plane = fill.placement, fill.piece.plane
    if placement.is_converting:
        own = converted(own, placement.arriving, placement.receiver.dtype)
    for copy in placement.copies(block, fill.tokens):
        part = own[copy.start : copy.start + copy.num_bytes]
        fill.targets.write(copy.block, plane, copy.target, part)


def _written(views: Sequence[memoryview], targets: Sequence[memoryview], unit_bytes: int) -> bytes:
    """Write what is there, or comes, to the targets; the checksums of their units."""
    if not isinstance(views, ArrivingBlocks):
        return copied_checksums(views, targets, unit_bytes)
    try:
        summed_up = views.read_summed(targets, unit_bytes)
    except BaseException:
        for target in targets:  # whatever has come: it must be finite, as above
            target[:] = bytes(target.nbytes)
        raise
    return checksums_of(targets, unit_bytes) if summed_up is None else summed_up


def _copy(fill: Fill, block: int, target: memoryview) -> list[Unit]:
    """Write the block to the target; return the units that came out wrong."""
    unit_bytes = fill.placement.arriving.unit_bytes
    actual = _written(fill.views((block,)), (target,), unit_bytes)
    return _compared(fill, (block,), actual).get(0, [])


def _compared(fill: Fill, blocks: Sequence[int], actual: bytes) -> dict[int, list[Unit]]:
    """The units that are not what their sender computed, by the position of their block: first the
    blocks of the first plane, and so on. All of them where their checksums were damaged."""
    if not fill.piece.has_checksums:
        return _by_target(fill, blocks, range(len(actual) // CHECKSUM_BYTES))
    return _by_target(fill, blocks, differing(actual, fill.checksums(blocks)))


def _by_target(fill: Fill, blocks: Sequence[int], wrong: Iterable[int]) -> dict[int, list[Unit]]:
    """Units given by number, grouped by the position of their block."""
    found: dict[int, list[Unit]] = {}
    for number in wrong:
        position, head = divmod(number, fill.placement.arriving.num_kv_heads)
        found.setdefault(position, []).append(Unit(blocks[position % len(blocks)], head))
    return found
