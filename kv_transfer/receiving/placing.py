"""Writing the bytes of a piece where they belong, and verifying them. Runs on a worker thread.

    equal layouts   piece --copied and verified in one pass--> D's blocks
    others          piece --likewise--> scratch --> converted --> D's blocks

A piece that has yet to come (`ArrivingBlocks`) is read into the same places, and verified there.

What is verified is always memory of D's own, never the piece itself: that may look into memory
that its sender can write while we read. So the bytes that were verified are the bytes that stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from baton.core.block_views import ArrivingBlocks, part_of
from baton.kv_transfer.layouts.convert import converted
from baton.kv_transfer.layouts.integrity import checksums_of, copied_checksums
from baton.kv_transfer.receiving.filling import Fill


class Unit(NamedTuple):
    """Which part of a piece's plane."""

    block: int
    head: int
    """The head's number among those that travel."""


def place(fill: Fill) -> list[Unit]:
    """Write the fill's blocks; return the units that are not what their sender computed."""
    if fill.placement.is_direct and fill.targets.is_in_memory:
        return _place_directly(fill)
    return _place_by_scratch(fill)


def _place_directly(fill: Fill) -> list[Unit]:
    placement, plane = fill.placement, fill.piece.plane
    whole = fill.targets.views(fill.blocks, plane)
    targets = part_of(whole, placement.offset, placement.arriving.layer_block_bytes)
    bad_by_block = _copy(fill, fill.blocks, targets)
    for index, block in enumerate(fill.blocks) if bad_by_block else ():
        if block in bad_by_block:
            # Attention reads unused slots: they must be finite.
            targets[index][:] = bytes(placement.arriving.layer_block_bytes)
    return [unit for units in bad_by_block.values() for unit in units]


def _place_by_scratch(fill: Fill) -> list[Unit]:
    """Block by block: so little memory comes from the heap and goes back to it."""
    bad: list[Unit] = []
    own = memoryview(bytearray(fill.placement.arriving.layer_block_bytes))
    for block in fill.blocks:
        if found := _copy(fill, (block,), (own,)):
            bad += found[block]
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


def _written(
    views: Sequence[memoryview], targets: Sequence[memoryview], unit_bytes: int
) -> tuple[int, ...]:
    """Write what is there, or comes, to the targets; the checksums of their units."""
    if not isinstance(views, ArrivingBlocks):
        return copied_checksums(views, targets, unit_bytes)
    try:
        views.read_into(targets)
    except BaseException:
        for target in targets:  # whatever has come: it must be finite, as above
            target[:] = bytes(target.nbytes)
        raise
    return checksums_of(targets, unit_bytes)


def _copy(
    fill: Fill, blocks: Sequence[int], targets: Sequence[memoryview]
) -> dict[int, list[Unit]]:
    """Write the blocks to the targets; return the units that came out wrong, by block."""
    unit_bytes, expected = fill.placement.arriving.unit_bytes, fill.checksums(blocks)
    actual = _written(fill.views(blocks), targets, unit_bytes)
    if actual == expected:
        return {}
    bad_by_block: dict[int, list[Unit]] = {}
    for index, (got, wanted) in enumerate(zip(actual, expected, strict=True)):
        if got != wanted:
            position, head = divmod(index, len(expected) // len(blocks))
            bad_by_block.setdefault(blocks[position], []).append(Unit(blocks[position], head))
    return bad_by_block
