"""Checksums of many pieces at once are those of each."""

from __future__ import annotations

import os

from baton.core.block_views import BlockViews
from baton.kv_transfer.layouts.integrity import (
    checksums_of,
    checksums_together,
    copied_checksums,
    copied_together,
)

UNIT = 512


def test_what_is_copied_together_is_copied_and_summed_up_as_each_alone() -> None:
    arena, other = memoryview(os.urandom(16 * UNIT)), memoryview(os.urandom(3 * UNIT))
    sources = [
        BlockViews(arena, [12 * UNIT, 0, 4 * UNIT], 2 * UNIT),
        BlockViews(arena, [], 2 * UNIT),
        [other[UNIT:], other[:UNIT]],
    ]
    together, alone = memoryview(bytearray(9 * UNIT)), memoryview(bytearray(9 * UNIT))

    def targets(memory: memoryview) -> list[list[memoryview]]:
        begins = [[0, 2, 4], [], [6, 8]]
        lengths = [[2, 2, 2], [], [2, 1]]
        return [
            [memory[at * UNIT : (at + size) * UNIT] for at, size in zip(*each, strict=True)]
            for each in zip(begins, lengths, strict=True)
        ]

    found = copied_together(list(zip(sources, targets(together), strict=True)), UNIT)

    pairs = zip(sources, targets(alone), strict=True)
    assert found == [copied_checksums(source, target, UNIT) for source, target in pairs]
    assert together == alone
    assert found == checksums_together(sources, UNIT) == [checksums_of(s, UNIT) for s in sources]
    assert [len(each) for each in found] == [6 * 8, 0, 3 * 8]
