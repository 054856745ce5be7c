from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

import xxhash
from hypothesis import given
from hypothesis import strategies as st
from tests.kv_transfer.replicas import LAYOUT

from baton.core.ids import Epoch, TransferId
from baton.kv_transfer.handoff.transport import LentPiece
from baton.kv_transfer.layouts.integrity import CHECKSUM_BYTES, unit_checksums
from baton.kv_transfer.sending.pieces import BlockRead, HeadRange, cuts, lend, read

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


def test_checksums_are_xxh3_with_64_bits_and_one_for_each_unit() -> None:
    twice = unit_checksums(memoryview(bytes(64)), 32)

    (of_32,) = struct.unpack("<Q", unit_checksums(bytes(32), 32))
    assert of_32 == xxhash.xxh3_64_intdigest(bytes(32))
    assert twice == unit_checksums(bytes(32), 32) * 2
