"""Writing the bytes of a piece where they belong, and verifying them. Runs on a worker thread.

    equal layouts   piece --one copy a block--> D's block --verified there
    others          piece --one copy--> scratch --verified there--> converted --> D's blocks

What is verified is always memory of D's own, never the piece itself: that may look into memory
that its sender can write while we read. So the bytes that were verified are the bytes that stay.
"""

from __future__ import annotations

from typing import NamedTuple

from baton.kv_transfer.convert import converted
from baton.kv_transfer.filling import Fill
from baton.kv_transfer.integrity import unit_checksums


class Unit(NamedTuple):
    """Which part of a piece's layer."""

    block: int
    head: int
    """Of those that travel."""


def place(fill: Fill) -> list[Unit]:
    """Write the fill's blocks; return the units that are not what their sender computed."""
    if fill.stream.placement.is_direct and fill.targets.is_in_memory:
        return _place_directly(fill)
    return _place_by_scratch(fill)


def _place_directly(fill: Fill) -> list[Unit]:
    placement, layer = fill.stream.placement, fill.piece.layer
    start, stop = placement.offset, placement.offset + placement.arriving.layer_block_bytes
    bad: list[Unit] = []
    for block in fill.blocks:
        target = fill.targets.view(block, layer)[start:stop]
        target[:] = fill.view(block)
        if found := _bad_units(fill, block, target):
            target[:] = bytes(len(target))  # attention reads unused slots: they must be finite
            bad += found
    return bad


def _place_by_scratch(fill: Fill) -> list[Unit]:
    """Block by block: so little memory comes from the heap and goes back to it."""
    bad: list[Unit] = []
    for block in fill.blocks:
        own = memoryview(bytearray(fill.view(block)))
        if found := _bad_units(fill, block, own):
            bad += found
        else:
            _regroup(fill, block, own)
    return bad


def _regroup(fill: Fill, block: int, own: memoryview) -> None:
    placement, layer = fill.stream.placement, fill.piece.layer
    if placement.is_converting:
        own = converted(own, placement.arriving, placement.receiver.dtype)
    for copy in placement.copies(block, fill.tokens):
        part = own[copy.start : copy.start + copy.num_bytes]
        fill.targets.write(copy.block, layer, copy.target, part)


def _bad_units(fill: Fill, block: int, own: memoryview) -> list[Unit]:
    actual = unit_checksums(own, fill.stream.placement.arriving.unit_bytes)
    expected = fill.checksums(block)
    if actual == expected:
        return []
    pairs = enumerate(zip(actual, expected, strict=True))
    return [Unit(block, head) for head, (got, wanted) in pairs if got != wanted]
