from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

import xxhash
from hypothesis import given
from hypothesis import strategies as st
from tests.kv_transfer.replicas import LAYOUT

from baton.core.ids import Epoch, TransferId
from baton.kv_transfer.handoff.messages import BlockRange
from baton.kv_transfer.handoff.transport import LentPiece
from baton.kv_transfer.layouts.integrity import CHECKSUM_BYTES, unit_checksums
from baton.kv_transfer.sending.pieces import (
    BlockRead,
    HeadRange,
    Progress,
    Selection,
    cuts,
    lend,
    read,
)

WHOLE = HeadRange.between(LAYOUT, LAYOUT)


@dataclass(frozen=True)
class Blocks:
    """A `baton.core.kv_pool.BlockSource`."""

    contents: Sequence[bytes]
    is_in_memory: bool = True

    def views(self, planes: range, start: int, stop: int) -> tuple[memoryview, ...]:
        return tuple(map(memoryview, self.contents[start:stop]))

    def can_sum_up(self, unit_bytes: int) -> bool:
        return False

    def checksums(
        self, planes: range, start: int, stop: int, part: slice, unit_bytes: int
    ) -> bytes:
        raise AssertionError("these are in memory")


def make_reading(num_blocks: int, first_block: int = 0, heads: HeadRange = WHOLE) -> BlockRead:
    """Of blocks whose every byte is another one than its neighbour's."""
    size = LAYOUT.layer_block_bytes
    blocks = [bytes((7 * block + at) % 251 for at in range(size)) for block in range(num_blocks)]
    return BlockRead(
        transfer_id=TransferId("kv"),
        sender_epoch=Epoch("p"),
        receiver_epoch=Epoch("d"),
        heads=heads,
        plane=1,
        first_block=first_block,
        blocks=tuple(range(20, 20 + num_blocks)),
        source=Blocks(blocks),
    )


def pieces_of(reading: BlockRead, max_bytes: int) -> list[LentPiece]:
    return [lend(cut, read(cut), lambda: None) for cut in cuts(reading, lambda: max_bytes)]


@given(num_blocks=st.integers(1, 9), first_block=st.integers(0, 5), max_bytes=st.integers(1, 700))
def test_pieces_cover_a_reading_once_in_order_and_within_their_size(
    num_blocks: int, first_block: int, max_bytes: int
) -> None:
    reading = make_reading(num_blocks, first_block)

    pieces = pieces_of(reading, max_bytes)

    covered = [p.first_block + index for p in pieces for index in range(len(p.views))]
    assert covered == list(range(first_block, first_block + num_blocks))
    assert [block for piece in pieces for block in piece.blocks] == list(reading.blocks)
    assert [view for piece in pieces for view in piece.views] == list(
        reading.source.views(range(1), 0, num_blocks)
    )
    assert all(piece.num_bytes <= max(max_bytes, LAYOUT.layer_block_bytes) for piece in pieces)
    assert all(
        piece.checksums == unit_checksums(b"".join(piece.views), LAYOUT.unit_bytes)
        for piece in pieces
    )


def test_only_the_heads_that_both_sides_hold_travel() -> None:
    sender = replace(LAYOUT, first_kv_head=2)  # and 3
    receiver = replace(LAYOUT, first_kv_head=3, num_kv_heads=4)

    heads = HeadRange.between(sender, receiver)
    (piece,) = pieces_of(make_reading(2, heads=heads), 1 << 20)

    assert (heads.layout.first_kv_head, heads.layout.num_kv_heads) == (3, 1)
    whole = make_reading(2).source.views(range(1), 0, 2)
    assert [bytes(view) for view in piece.views] == [view[LAYOUT.unit_bytes :] for view in whole]
    assert piece.block_offset == LAYOUT.unit_bytes
    assert len(piece.checksums) == 2 * CHECKSUM_BYTES


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


def test_checksums_are_xxh3_with_64_bits_and_one_for_each_unit() -> None:
    twice = unit_checksums(memoryview(bytes(64)), 32)

    (of_32,) = struct.unpack("<Q", unit_checksums(bytes(32), 32))
    assert of_32 == xxhash.xxh3_64_intdigest(bytes(32))
    assert twice == unit_checksums(bytes(32), 32) * 2


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
