from __future__ import annotations

from collections.abc import Sequence

import pytest

from baton.core.block_views import (
    ArrivingBlocks,
    BlockViews,
    chosen,
    num_bytes_of,
    part_of,
    sizes_of,
    stretches,
)

MEMORY = memoryview(bytes(range(100)))
VIEWS = BlockViews(MEMORY, [30, 0, 90], 10)


def test_blocks_of_one_memory_are_as_the_views_of_each() -> None:
    plain = tuple(VIEWS)

    assert [bytes(view) for view in plain] == [bytes(range(s, s + 10)) for s in (30, 0, 90)]
    assert (*VIEWS[:2], VIEWS[-1]) == plain
    assert list(chosen(VIEWS, [2, 0])) == list(chosen(plain, [2, 0])) == [plain[2], plain[0]]
    assert list(part_of(VIEWS, 3, 4)) == list(part_of(plain, 3, 4)) == [v[3:7] for v in plain]
    assert num_bytes_of(VIEWS) == num_bytes_of(plain) == 30
    assert sizes_of(VIEWS) == sizes_of(plain) == {10}


def test_the_same_blocks_of_several_rows_are_as_the_views_of_each() -> None:
    views = BlockViews(MEMORY, [10, 0], 5, range(20, 90, 30))
    begins = [30, 20, 60, 50, 90, 80]
    plain = [MEMORY[at : at + 5] for at in begins]

    assert list(views) == plain and (len(views), num_bytes_of(views)) == (6, 30)
    assert views.all_starts() == begins
    assert views[-2] == plain[-2]
    assert list(views[2:6]) == plain[2:6], "whole rows"
    assert list(views[1:4]) == plain[1:4] and list(views[::3]) == plain[::3]
    assert list(part_of(views, 2, 2)) == [view[2:4] for view in plain]
    assert list(chosen(views, [5, 0])) == [plain[5], plain[0]]
    with pytest.raises(IndexError):
        views[6]
    with pytest.raises(IndexError, match="beyond the 100"):
        BlockViews(MEMORY, [0, 16], 5, range(20, 90, 30))


@pytest.mark.parametrize("starts", [[0, 91], [-1], [10**18]])
def test_blocks_beyond_their_memory_are_refused(starts: list[int]) -> None:
    with pytest.raises(IndexError, match="beyond the 100"):
        BlockViews(MEMORY, starts, 10)


@pytest.mark.parametrize(("offset", "size"), [(0, 11), (5, 6), (-1, 5), (11, -1)])
def test_a_part_beyond_its_block_is_refused(offset: int, size: int) -> None:
    with pytest.raises(ValueError, match="of 10"):
        VIEWS.part(offset, size)


def test_blocks_that_lie_end_to_end_are_one_stretch() -> None:
    views = BlockViews(MEMORY, [20, 30, 50, 40, 50, 60], 10)

    found = stretches(views)

    assert [view.nbytes for view in found] == [20, 10, 30]
    assert b"".join(found) == b"".join(views)
    assert stretches(BlockViews(MEMORY, [], 10)) == []


def test_blocks_that_arrive_are_written_where_they_belong_or_where_somebody_looks() -> None:
    reads: list[list[int]] = []

    def read(targets: Sequence[memoryview]) -> None:
        reads.append([target.nbytes for target in targets])
        for target in targets:
            target[:] = bytes([7]) * target.nbytes

    def arriving() -> ArrivingBlocks:
        return ArrivingBlocks(3, 10, read)

    memory = memoryview(bytearray(100))
    straight, looked_at = arriving(), arriving()
    assert (len(straight), num_bytes_of(straight), sizes_of(straight)) == (3, 30, {10})
    assert not reads

    straight.read_into(BlockViews(memory, [0, 10, 50], 10))
    assert [bytes(view) for view in chosen(looked_at, [2, 0])] == [bytes([7]) * 10] * 2
    looked_at.read_into(BlockViews(memory, [90, 70, 20], 10))

    assert reads == [[20, 10], [30]]
    assert [start for start in range(100) if memory[start]] == [
        start for first in (0, 10, 20, 50, 70, 90) for start in range(first, first + 10)
    ]
