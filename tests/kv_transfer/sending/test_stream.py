from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from baton.kv_transfer.handoff.messages import BlockRange
from baton.kv_transfer.sending.stream import Progress, Selection

steps = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9)), max_size=30)


@given(first_block=st.integers(0, 8), num_layers=st.integers(1, 4), steps=steps)
def test_a_stream_passes_every_block_of_every_layer_once_and_none_before_it_is_published(
    first_block: int, num_layers: int, steps: Sequence[tuple[int, int]]
) -> None:
    num_blocks, published = 9, [0] * num_layers
    progress = Progress(first_block, num_blocks, num_layers)
    passed: list[tuple[int, int]] = []

    def advance(max_blocks: int) -> None:
        spans = progress.advance(published, max_blocks)
        found = [(span.plane, block) for span in spans for block in range(span.start, span.stop)]
        assert len(found) <= max_blocks
        assert all(block < published[layer] for layer, block in found)
        passed.extend(found)

    for more, max_blocks in steps:  # chunks of `more` blocks, layer by layer
        for layer in range(num_layers):
            published[layer] = min(published[layer] + more, num_blocks)
            advance(max_blocks)
    published[:] = [num_blocks] * num_layers
    advance(num_layers * num_blocks)

    expected = [(layer, b) for layer in range(num_layers) for b in range(first_block, num_blocks)]
    assert sorted(passed) == expected
    assert progress.is_done


def test_what_was_computed_first_is_read_first() -> None:
    progress = Progress(0, 4, num_planes=3)

    first = progress.advance([2, 2, 0], 2)
    then = progress.advance([4, 2, 2], 99)

    assert first == [(0, 0, 2)]
    assert then == [(1, 0, 2), (2, 0, 2), (0, 2, 4)]


def test_a_selection_is_read_once_as_far_as_it_is_there_and_in_parts_of_bounded_size() -> None:
    selection = Selection([BlockRange(0, 1, 3), BlockRange(1, 0, 4)])

    found = [selection.advance(published, 3) for published in ((2, 1), (2, 1), (3, 4), (4, 4))]

    assert found == [
        [BlockRange(0, 1, 2), BlockRange(1, 0, 1)],
        [],
        [BlockRange(0, 2, 3), BlockRange(1, 1, 3)],
        [BlockRange(1, 3, 4)],
    ]
    assert selection.is_done
