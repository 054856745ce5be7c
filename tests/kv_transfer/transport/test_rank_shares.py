"""Any bytes of a cache in pieces are found with the rank that keeps them: by NIXL, and in files."""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.ranks.sharded_caches import NUM_BLOCKS, sharded
from tests.kv_transfer.replicas import LAYOUT
from tests.kv_transfer.transport.nixl.test_nixl_on_device import Fabric, introduced

from baton.core.block_views import BlockViews, DividedBlocks, part_of
from baton.core.errors import TransferCut
from baton.core.ids import Epoch
from baton.engine.ranks.sharded_cache import ShardedCache
from baton.kv_transfer.transport.block_tickets import BlockTicket
from baton.kv_transfer.transport.control.client import AnnouncedPiece
from baton.kv_transfer.transport.nixl.arena import Arena, PeerMemory
from baton.kv_transfer.transport.nixl.reading import Reading
from baton.kv_transfer.transport.nixl.sending import NixlSending
from baton.kv_transfer.transport.rank_shares import RankShare, kept_by
from baton.kv_transfer.transport.shm_arena import MappedArena, ShmArena, mapped_file
from baton.proto import kv_pb2 as pb

WHOLE = replace(LAYOUT, num_kv_heads=4, num_layers=4)
SPLITS = {
    "two halves": [(0, 2, 0, 4), (2, 2, 0, 4)],
    "more ranks than heads": [(0, 2, 0, 4), (0, 2, 0, 4), (2, 2, 0, 4), (2, 2, 0, 4)],
    "two stages of two": [(0, 2, 0, 1), (2, 2, 0, 1), (0, 2, 1, 3), (2, 2, 1, 3)],
}
"""First head, number of heads, first layer and number of layers, by rank."""
RUNS = st.tuples(st.integers(0, 3), st.integers(1, 4)).filter(lambda run: run[0] < run[1])


def cache_on(split: str, fabric: Fabric) -> ShardedCache:
    """A cache of random bytes. Ranks that keep what another one keeps are behind that."""
    layouts = [
        replace(WHOLE, first_kv_head=head, num_kv_heads=count, num_layers=layers)
        for head, count, _, layers in SPLITS[split]
    ]
    starts = [start for _, _, start, _ in SPLITS[split][1:]]
    cache, ranks = sharded(WHOLE, layouts, starts, introduce=partial(introduced, fabric))
    for block, plane in product(range(NUM_BLOCKS), range(WHOLE.num_planes)):
        cache.write(block, plane, memoryview(os.urandom(WHOLE.layer_block_bytes)))
    for rank, own in enumerate(layouts):
        if own in layouts[:rank] and not any(starts):
            ranks[rank].planes[0].zero_()
    return cache


def met(cache: ShardedCache, fabric: Fabric) -> PeerMemory:
    """What a D that reads by NIXL knows of it."""
    half = NixlSending(cache.arena, fabric.create)
    arena = msgspec.msgpack.decode(asyncio.run(half.meet(Epoch("d"), b"")), type=Arena)
    return PeerMemory(arena, [agent.decode() for agent in arena.agents])


def mapped(cache: ShardedCache) -> MappedArena:
    """What a D on the same host maps of it."""
    arena, files = cache.arena, []
    for share in arena.shares:
        sizes = list(share.block_bytes)
        kept = RankShare(
            first_plane=share.first_plane, block_bytes=sizes, starts=list(share.starts)
        )
        assert share.fd is not None
        files.append((kept, mapped_file(share.fd, arena.num_blocks * sum(sizes))))
    shape = ShmArena("", b"", arena.num_blocks, list(arena.block_bytes))
    return MappedArena(Epoch("p"), shape, files, socket.socket())


def landed(reading: Reading) -> bytes:
    """What NIXL would bring."""
    found = bytearray(reading.num_bytes)
    for part in reading.parts:
        for number, row in zip(part.numbers, part.rows, strict=True):
            of_row, at = divmod(number, part.grid.count)
            start = part.grid.starts[of_row] + at * part.grid.stride
            target = row * reading.row_bytes + part.offset
            found[target : target + part.grid.size] = ctypes.string_at(start, part.grid.size)
    return bytes(found)


def piece_of(planes: range, heads: range, blocks: Sequence[int]) -> AnnouncedPiece:
    ticket = BlockTicket(heads.start * WHOLE.unit_bytes, len(heads) * WHOLE.unit_bytes, blocks)
    message = pb.KvPiece(
        plane=planes.start,
        num_planes=len(planes),
        num_blocks=len(blocks),
        ticket=ticket.pack(),
    )
    return AnnouncedPiece(message=message, data=memoryview(b""), take=lambda: None)


@pytest.mark.parametrize("split", SPLITS)
def test_any_heads_of_any_planes_are_read_from_those_who_keep_them(split: str) -> None:
    fabric = Fabric()
    cache = cache_on(split, fabric)
    memory, files = met(cache, fabric), mapped(cache)

    @given(RUNS, RUNS, st.permutations(range(NUM_BLOCKS)), st.integers(1, NUM_BLOCKS))
    def check(
        of_planes: tuple[int, int], of_heads: tuple[int, int], order: list[int], count: int
    ) -> None:
        planes, heads, blocks = range(*of_planes), range(*of_heads), order[:count]
        piece, views = piece_of(planes, heads, blocks), cache.views(blocks, planes)
        part = part_of(views, heads.start * WHOLE.unit_bytes, len(heads) * WHOLE.unit_bytes)

        assert landed(memory.reading(piece)) == b"".join(part)
        assert [bytes(view) for view in files.views(piece)] == [bytes(view) for view in part]

    check()
    files.connection.close()


def test_what_one_rank_keeps_of_several_planes_is_looked_at_where_it_lies() -> None:
    files = mapped(cache_on("two halves", Fabric()))

    of_one = files.views(piece_of(range(4), range(2, 4), (2, 0)))
    of_two = files.views(piece_of(range(4), range(1, 3), (2, 0)))

    assert isinstance(of_one, BlockViews) and of_one.memory is files.files[1][1]
    assert isinstance(of_two, DividedBlocks)
    assert all(view.readonly for view in (*of_one, *of_two))
    files.connection.close()


def test_bytes_that_no_rank_keeps_are_refused() -> None:
    half = RankShare.of_all([32])

    with pytest.raises(TransferCut, match="no rank of the sender keeps byte 32 of plane 0"):
        kept_by([half], 0, range(16, 48))


def test_a_share_that_does_not_say_where_it_begins_in_each_plane_is_refused_as_it_is_read() -> None:
    told = msgspec.msgpack.encode({"block_bytes": [32, 32], "starts": [0]})

    with pytest.raises(msgspec.ValidationError, match="that no block could have"):
        msgspec.msgpack.decode(told, type=RankShare)
