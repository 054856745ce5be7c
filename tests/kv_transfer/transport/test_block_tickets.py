"""Tickets that another process wrote: whatever they say, no block is found outside of the arena."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from baton.core.errors import TransferCut
from baton.kv_transfer.transport.block_tickets import BlockTicket, read_ticket
from baton.kv_transfer.transport.control.client import AnnouncedPiece
from baton.kv_transfer.transport.nixl.arena import Arena, PeerMemory
from baton.proto import kv_pb2 as pb

NUM_BLOCKS = 64
BLOCK_BYTES = (1024, 1024, 256, 256, 1024)
"""Of a model with side caches: planes of two sizes."""
FAR = 1 << 40
ARENA = Arena(
    agent=b"",
    planes=[FAR * plane for plane in range(1, 1 + len(BLOCK_BYTES))],
    num_blocks=NUM_BLOCKS,
    block_bytes=list(BLOCK_BYTES),
    mem_type="DRAM",
    device=0,
)
MEMORY = PeerMemory(ARENA, ["p"])

numbers = st.one_of(st.integers(0, NUM_BLOCKS + 1), st.integers(0, 2**32 - 1))
sizes = st.one_of(st.sampled_from((0, 1, 255, 256, 257, 1024)), st.integers(0, 2**32 - 1))
tickets = st.builds(BlockTicket, sizes, sizes, st.lists(numbers, max_size=4)).map(BlockTicket.pack)


def announced(ticket: bytes, plane: int, num_planes: int, num_blocks: int) -> AnnouncedPiece:
    message = pb.KvPiece(plane=plane, num_planes=num_planes, num_blocks=num_blocks, ticket=ticket)
    return AnnouncedPiece(message=message, data=memoryview(b""), take=lambda: None)


def read(piece: AnnouncedPiece) -> BlockTicket:
    return read_ticket(piece, num_blocks=NUM_BLOCKS, block_bytes=BLOCK_BYTES)


@given(
    st.one_of(tickets, st.binary(max_size=24)),
    st.one_of(st.integers(0, 5), st.integers(0, 2**32 - 1)),
    st.one_of(st.integers(0, 5), st.integers(0, 2**32 - 1)),
    st.one_of(st.integers(0, 4), st.integers(0, 2**32 - 1)),
)
@example(BlockTicket(1, 255, [63, 0, 63]).pack(), 2, 2, 3)
@example(BlockTicket(0, 1024, [NUM_BLOCKS]).pack(), 0, 1, 1)
@example(BlockTicket(1, 1024, [0]).pack(), 0, 1, 1)
@example(BlockTicket(0, 256, [0]).pack(), 1, 2, 1)  # of two sizes
@example(BlockTicket(0, 1024, [0]).pack(), 4, 2, 1)
@example(BlockTicket(0, 1024, [0]).pack() + b"\0", 0, 1, 1)
@example(BlockTicket(0, 1024, [0, 1]).pack(), 0, 1, 1)
@example(BlockTicket(0, 1024, []).pack(), 0, 1, 0)
@example(BlockTicket(0, 0, [0]).pack(), 0, 1, 1)
def test_a_ticket_leads_into_the_arena_or_is_refused(
    ticket: bytes, plane: int, num_planes: int, num_blocks: int
) -> None:
    piece = announced(ticket, plane, num_planes, num_blocks)
    try:
        found = read(piece)
    except TransferCut as cut:
        assert "ticket" in str(cut)
        with pytest.raises(TransferCut):
            MEMORY.reading(piece)
        return

    assert found.pack() == ticket
    assert len(found.blocks) == num_blocks > 0
    assert_inside(piece, found)


@given(st.data())
def test_what_a_sender_packs_is_read_as_it_is(data: st.DataObject) -> None:
    plane = data.draw(st.integers(0, len(BLOCK_BYTES) - 1))
    num_planes = data.draw(st.integers(1, len(BLOCK_BYTES) - plane))
    assume(len({*BLOCK_BYTES[plane : plane + num_planes]}) == 1)
    offset = data.draw(st.integers(0, BLOCK_BYTES[plane] - 1))
    size = data.draw(st.integers(1, BLOCK_BYTES[plane] - offset))
    blocks = data.draw(st.lists(st.integers(0, NUM_BLOCKS - 1), min_size=1, max_size=5))
    ticket = BlockTicket(offset, size, tuple(blocks))

    piece = announced(ticket.pack(), plane, num_planes, len(blocks))
    assert read(piece) == ticket
    assert_inside(piece, ticket)


def assert_inside(piece: AnnouncedPiece, ticket: BlockTicket) -> None:
    """NIXL is told of the part of each block that the ticket names, and of nothing else."""
    reading = MEMORY.reading(piece)
    (part,) = reading.parts
    grid, stretches = part.grid, part.numbers
    assert (part.offset, list(part.rows)) == (0, list(range(reading.num_rows)))
    named = product(
        range(piece.message.plane, piece.message.plane + piece.num_planes), ticket.blocks
    )
    for stretch, (plane, block) in zip(stretches, named, strict=True):
        row, at = divmod(stretch, grid.count)
        begin = grid.starts[row] + at * grid.stride
        assert begin == ARENA.planes[plane] + block * BLOCK_BYTES[plane] + ticket.offset
        assert 0 < grid.size == ticket.size <= BLOCK_BYTES[plane] - ticket.offset
        assert block < NUM_BLOCKS
