"""KV of several ranks, which NIXL reads from the memory of each."""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import product

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.ranks.sharded_caches import sharded
from tests.kv_transfer.replicas import LAYOUT, PROMPT, TRANSFER
from tests.kv_transfer.transport.nixl.test_nixl import Handle
from tests.kv_transfer.transport.nixl.test_nixl_on_device import Fabric, addresses, introduced
from tests.kv_transfer.world import World, connected_ranks

from baton.core.block_views import part_of
from baton.core.errors import TransferCut, TransferError
from baton.core.ids import Epoch
from baton.core.kv_layout import KvLayout
from baton.engine.memory.kv_cache import KvCache
from baton.engine.ranks.sharded_cache import ShardedCache
from baton.kv_transfer import transports
from baton.kv_transfer.transport.block_tickets import BlockTicket
from baton.kv_transfer.transport.control.client import AnnouncedPiece, ControlClient
from baton.kv_transfer.transport.nixl.arena import Arena, PeerMemory, RankArena
from baton.kv_transfer.transport.nixl.nixl import NixlTransport
from baton.kv_transfer.transport.nixl.reading import Reading
from baton.kv_transfer.transport.nixl.reads import Agent
from baton.kv_transfer.transport.nixl.sending import NixlSending, RegisteredMemory
from baton.kv_transfer.transports import TransportKind
from baton.proto import kv_pb2 as pb

FOUR_HEADS = replace(LAYOUT, num_kv_heads=4)
REGROUPED = replace(FOUR_HEADS, block_size=8)
"""A layout of D's for which everything comes on one stream."""


@asynccontextmanager
async def by_nixl(
    patch: pytest.MonkeyPatch,
    fabric: Fabric,
    num_ranks: tuple[int, int],
    decode_layout: KvLayout | None = None,
    *,
    have_agents: bool = True,
) -> AsyncIterator[World]:
    """`have_agents`: whether each rank of P registers its memory itself, or the lead all."""
    kind = TransportKind(
        lambda parts: NixlTransport(ControlClient(parts.channels), fabric.create),
        lambda parts, arena: NixlSending(arena, fabric.create),
        reads_arena=True,
        reads_shares=True,
    )
    patch.setattr(transports, "TRANSPORTS", {"nixl": kind})
    introduce = (lambda arena: introduced(fabric, arena)) if have_agents else None
    async with connected_ranks(
        "nixl", FOUR_HEADS, num_ranks, decode_layout=decode_layout, introduce=introduce
    ) as it:
        yield it


def owner_of(fabric: Fabric, handle: Handle) -> str:
    """The agent whose memory it reads."""
    (name,) = (name for name, agent in fabric.agents.items() if agent.keeps(handle))
    return name


async def assert_all_came(it: World) -> None:
    await it.on_d.call(lambda: it.decode.adopt(TRANSFER, PROMPT))
    assert it.decode.holds_kv(TRANSFER)
    await it.on_d.call(lambda: it.decode.finish(TRANSFER))
    await it.assert_nothing_is_left()


@pytest.mark.parametrize(
    ("num_ranks", "have_agents", "streams"),
    [
        ((2, 2), True, [(0, 2), (2, 4)]),
        ((2, 1), False, [(0, 2), (2, 4)]),
        ((1, 2), True, [(0, 2), (2, 4)]),
        ((4, 2), True, [(0, 1), (1, 2), (2, 3), (3, 4)]),
    ],
)
async def test_each_pair_of_ranks_has_a_stream_that_reads_that_ranks_memory(
    num_ranks: tuple[int, int],
    have_agents: bool,
    streams: list[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fabric = Fabric()
    async with by_nixl(monkeypatch, fabric, num_ranks, have_agents=have_agents) as it:
        reservation = await it.grant()
        await it.compute()

        await it.fetch(reservation)

        wanted = [opened.layout for opened in it.transport.opened]
        assert sorted((each.first_kv_head, each.stop_kv_head) for each in wanted) == streams
        owners = {owner_of(fabric, handle) for handle in fabric.posted}
        assert len(owners) == (num_ranks[0] if have_agents else 1)
        await assert_all_came(it)


async def test_heads_of_several_ranks_land_side_by_side_where_one_stream_brings_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fabric = Fabric()
    async with by_nixl(monkeypatch, fabric, (2, 2), REGROUPED) as it:
        reservation = await it.grant()
        await it.compute()

        await it.fetch(reservation)

        assert [opened.layout.num_kv_heads for opened in it.transport.opened] == [4]
        assert len({owner_of(fabric, handle) for handle in fabric.posted}) == 2
        await assert_all_came(it)


async def test_wrong_bytes_of_one_rank_are_read_from_it_again_and_from_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fabric = Fabric(num_to_spoil=1)
    async with by_nixl(monkeypatch, fabric, (2, 2)) as it:
        reservation = await it.grant()
        await it.compute()

        report = await it.fetch(reservation)

        assert report.num_asked_again == 1
        reads = Counter(owner_of(fabric, handle) for handle in fabric.posted)
        spoiled = owner_of(fabric, fabric.posted[0])
        (other,) = reads.keys() - {spoiled}
        assert reads[spoiled] == reads[other] + 1
        await assert_all_came(it)


async def test_a_rank_that_ends_fails_the_read_and_its_buffer_waits_for_what_others_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fabric = Fabric(is_holding=True)
    async with by_nixl(monkeypatch, fabric, (2, 1), REGROUPED) as it:
        reservation = await it.grant()
        await it.compute()
        fetching = asyncio.create_task(it.fetch(reservation))
        async with asyncio.timeout(60):
            while len(fabric.posted) < 2:  # one of each rank
                await asyncio.sleep(0.001)

        fabric.end(fabric.agents[owner_of(fabric, fabric.posted[1])])

        async with asyncio.timeout(60):
            with pytest.raises(TransferError, match="a read failed"):
                await fetching
        await it.assert_nothing_is_left()
        assert isinstance(it.inner, NixlTransport) and it.inner._reads is not None
        held = [handle for handle in fabric.posted if handle.state == "PROC"]
        assert it.inner._reads.num_in_flight == len(held) > 1  # it was opened anew, too
        landing = list(addresses(held))
        assert len({*landing}) == len(landing)
        fabric.let_go()
        async with asyncio.timeout(60):
            while it.inner._reads.num_in_flight:
                await asyncio.sleep(0.001)


def test_a_rank_whose_memory_cannot_be_registered_says_so(caplog: pytest.LogCaptureFixture) -> None:
    def create(name: str) -> Agent:
        raise RuntimeError("no plugins available")

    assert RegisteredMemory(create).introduce(KvCache(FOUR_HEADS, 1).arena) == b""
    assert "NIXL does not work at this rank" in caplog.text


WHOLE = replace(FOUR_HEADS, num_layers=4)
SPLITS = {
    "two halves": [(0, 2, 0, 4), (2, 2, 0, 4)],
    "more ranks than heads": [(0, 2, 0, 4), (0, 2, 0, 4), (2, 2, 0, 4), (2, 2, 0, 4)],
    "two stages of two": [(0, 2, 0, 1), (2, 2, 0, 1), (0, 2, 1, 3), (2, 2, 1, 3)],
}
"""First head, number of heads, first layer and number of layers, by rank."""
NUM_HERE = 3
RUNS = st.tuples(st.integers(0, 3), st.integers(1, 4)).filter(lambda run: run[0] < run[1])


def shares_of(split: str, fabric: Fabric) -> tuple[ShardedCache, PeerMemory]:
    """A cache of random bytes, and what a D knows of it."""
    layouts = [
        replace(WHOLE, first_kv_head=head, num_kv_heads=count, num_layers=layers)
        for head, count, _, layers in SPLITS[split]
    ]
    starts = [start for _, _, start, _ in SPLITS[split][1:]]
    cache, ranks = sharded(
        WHOLE, layouts, starts, introduce=lambda arena: introduced(fabric, arena)
    )
    for block, plane in product(range(NUM_HERE), range(WHOLE.num_planes)):
        cache.write(block, plane, memoryview(os.urandom(WHOLE.layer_block_bytes)))
    for rank, own in enumerate(layouts):
        if own in layouts[:rank] and not any(starts):  # behind those that keep the same heads
            ranks[rank].planes[0].zero_()
    half = NixlSending(cache.arena, fabric.create)
    answer = asyncio.run(half.meet(Epoch("d"), b""))
    arena = msgspec.msgpack.decode(answer, type=Arena)
    return cache, PeerMemory(arena, [agent.decode() for agent in arena.agents])


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


@pytest.mark.parametrize("split", SPLITS)
def test_any_heads_of_any_planes_are_read_from_those_who_keep_them(split: str) -> None:
    fabric = Fabric()
    cache, memory = shares_of(split, fabric)

    @given(st.data())
    def check(data: st.DataObject) -> None:
        planes, heads = range(*data.draw(RUNS)), range(*data.draw(RUNS))
        blocks = data.draw(st.permutations(range(NUM_HERE)))[: data.draw(st.integers(1, NUM_HERE))]
        offset, size = heads.start * WHOLE.unit_bytes, len(heads) * WHOLE.unit_bytes
        message = pb.KvPiece(
            plane=planes.start,
            num_planes=len(planes),
            num_blocks=len(blocks),
            ticket=BlockTicket(offset, size, blocks).pack(),
        )
        piece = AnnouncedPiece(message=message, data=memoryview(b""), take=lambda: None)

        found = landed(memory.reading(piece))

        assert found == b"".join(part_of(cache.views(blocks, planes), offset, size))

    check()


def test_bytes_that_no_rank_keeps_are_refused() -> None:
    half = RankArena(0, [1 << 40], [32], [0], "DRAM", 0)
    memory = PeerMemory(Arena(b"", [], 2, [64], "DRAM", 0, [b"p"], [half]), ["p"])
    message = pb.KvPiece(num_planes=1, num_blocks=1, ticket=BlockTicket(16, 32, [0]).pack())

    with pytest.raises(TransferCut, match="no rank of the sender keeps byte 32 of plane 0"):
        memory.reading(AnnouncedPiece(message=message, data=memoryview(b""), take=lambda: None))
