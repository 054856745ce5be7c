from __future__ import annotations

import pytest

from baton.core.block_views import BlockViews, chosen, num_bytes_of, part_of, sizes_of

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


@pytest.mark.parametrize("starts", [[0, 91], [-1], [10**18]])
def test_blocks_beyond_their_memory_are_refused(starts: list[int]) -> None:
    with pytest.raises(IndexError, match="beyond the 100"):
        BlockViews(MEMORY, starts, 10)


@pytest.mark.parametrize(("offset", "size"), [(0, 11), (5, 6), (-1, 5), (11, -1)])
def test_a_part_beyond_its_block_is_refused(offset: int, size: int) -> None:
    with pytest.raises(ValueError, match="of 10"):
        VIEWS.part(offset, size)
