"""Side caches: what some layers keep beside their KV travels as the KV does."""

from __future__ import annotations

import array
import asyncio
from dataclasses import replace

import pytest
import torch
from tests.kv_transfer.handoff.test_resharding import Ranks
from tests.kv_transfer.layouts.test_plan import ranks
from tests.kv_transfer.replicas import (
    LAYOUT,
    PROMPT,
    TRANSFER,
    DecodeReplica,
    PrefillReplica,
    request_holder,
)
from tests.kv_transfer.world import connected, each_transport

from baton.core.errors import CorruptPiece, LayoutMismatch
from baton.core.kv_layout import KvLayout, SideCache
from baton.kv_transfer.handoff.messages import KvPiece
from baton.kv_transfer.layouts.convert import converted
from baton.kv_transfer.layouts.plan import BlockPlacement, check_layouts

INDEX = SideCache(name="index", layers=(0, 2), width=5, dtype="float32")
PAIRS = SideCache(name="pairs", layers=(1, 2), width=3, dtype="bfloat16")
WITH_SIDES = replace(
    LAYOUT, num_layers=3, num_kv_heads=1, head_dim=6, num_vectors=1, side_caches=(INDEX, PAIRS)
)
NUM_BLOCKS = WITH_SIDES.num_blocks_for(len(PROMPT))


@each_transport
async def test_side_caches_arrive_whole_and_equal(name: str) -> None:
    async with connected(name, layout=WITH_SIDES) as it:
        reservation = await it.grant()
        await it.compute()

        report = await it.fetch(reservation)

        assert report.num_bytes == NUM_BLOCKS * WITH_SIDES.block_bytes
        await it.on_d.call(it.decode.adopt)
        assert it.decode.holds_kv()
        await it.assert_nothing_is_left()


async def test_what_side_caches_keep_of_a_layer_leaves_with_the_layer() -> None:
    seen: list[int] = []

    def note(number: int, piece: KvPiece) -> KvPiece:
        seen.append(piece.plane)
        return piece

    async with connected("memory", alter=note, layout=WITH_SIDES) as it:
        fetching = asyncio.create_task(it.fetch(await it.grant()))
        await it.compute()
        await fetching

        first_of = [seen.index(plane) for plane in range(WITH_SIDES.num_planes)]
        assert first_of == sorted(first_of)
        await it.on_d.call(it.decode.adopt)
        await it.assert_nothing_is_left()


@each_transport
@pytest.mark.parametrize("block_size", [2, 8])
async def test_side_caches_come_in_blocks_of_another_size(name: str, block_size: int) -> None:
    ours = replace(WITH_SIDES, block_size=block_size)
    async with connected(name, layout=WITH_SIDES, decode_layout=ours) as it:
        fetching = asyncio.create_task(it.fetch(await it.grant()))
        await it.compute(9)
        await it.compute()
        await fetching

        await it.on_d.call(it.decode.adopt)
        assert it.decode.holds_kv()
        await it.assert_nothing_is_left()


@pytest.mark.parametrize("name", ["shm", "tcp", "grpc"])
async def test_planes_that_are_alike_for_their_sender_alone_come_one_by_one(name: str) -> None:
    as_kv = SideCache(name="as kv", layers=(0, 1, 2), width=6, dtype=WITH_SIDES.dtype)
    theirs = replace(WITH_SIDES, side_caches=(as_kv,))
    ours = replace(theirs, side_caches=(replace(as_kv, dtype="float16"),))
    assert len(set(theirs.planes)) == 1
    async with connected(name, layout=theirs, decode_layout=ours, joins_planes=True) as it:
        reservation = await it.grant()
        await it.compute()

        await it.fetch(reservation)

        await it.on_d.call(it.decode.adopt)
        await it.assert_nothing_is_left()


async def test_a_changed_byte_of_a_side_cache_is_noticed() -> None:
    def change(number: int, piece: KvPiece) -> KvPiece:
        if piece.plane not in WITH_SIDES.planes_of(2)[1:]:
            return piece
        first, *others = (bytearray(view) for view in piece.views)
        first[-1] ^= 1
        return replace(piece, views=tuple(map(memoryview, (first, *others))))

    async with connected("grpc", alter=change, layout=WITH_SIDES) as it:
        reservation = await it.grant()
        await it.compute()

        with pytest.raises(CorruptPiece, match=r"plane [456]: .* do not match"):
            await it.fetch(reservation)

        await it.assert_nothing_is_left(is_p_told=False)


@pytest.mark.parametrize(("num_p", "num_d"), [(1, 2), (4, 2), (2, 4)])
async def test_each_rank_gets_all_of_a_side_cache_however_heads_are_split(
    num_p: int, num_d: int
) -> None:
    layout = replace(WITH_SIDES, num_kv_heads=4, num_vectors=2)
    it = Ranks(ranks(layout, num_p), ranks(layout, num_d))
    it.offer("kv")
    it.compute("kv")

    await it.hand_over("kv")

    await it.assert_nothing_is_left()


def test_side_caches_are_converted_as_their_own_dtypes_say() -> None:
    narrow = replace(
        WITH_SIDES,
        dtype="bfloat16",
        side_caches=tuple(replace(g, dtype="float16") for g in WITH_SIDES.side_caches),
    )
    planes = BlockPlacement(WITH_SIDES, narrow).planes

    assert [plane.is_converting for plane in planes] == [True] * WITH_SIDES.num_planes
    assert [plane.placed.dtype for plane in planes] == [plane.dtype for plane in narrow.planes]
    data = memoryview(array.array("f", [1.5] * 20)).cast("B")
    narrowed = converted(data, planes[1].arriving, planes[1].receiver.dtype)
    assert torch.frombuffer(narrowed, dtype=torch.float16).tolist() == [1.5] * 20


@pytest.mark.parametrize(
    "other",
    [
        replace(WITH_SIDES, side_caches=()),
        replace(WITH_SIDES, side_caches=(INDEX,)),
        replace(WITH_SIDES, side_caches=(INDEX, replace(PAIRS, width=4))),
        replace(WITH_SIDES, side_caches=(INDEX, replace(PAIRS, layers=(0, 2)))),
    ],
)
def test_other_side_caches_are_refused_before_anything_travels(other: KvLayout) -> None:
    with pytest.raises(LayoutMismatch, match="side caches are index, pairs at the sender"):
        check_layouts(WITH_SIDES, other)


def test_an_open_block_keeps_nothing_of_an_earlier_owner() -> None:
    p, d = PrefillReplica(layout=WITH_SIDES), DecodeReplica(layout=WITH_SIDES)
    assert p.grant(d.receiver.epoch, prompt=PROMPT[:7])
    p.compute()
    block, plane = p.pool.table(request_holder(TRANSFER))[1], WITH_SIDES.planes_of(1)[1]
    p.cache.planes[plane][block] = 1.0  # tokens 4 and 5, and what an earlier owner left there

    p.pool.clear_tail(request_holder(TRANSFER), 7, plane)

    rows = p.cache.planes[plane][block, 0].tolist()
    assert rows == [[1.0] * PAIRS.width] * 3 + [[0.0] * PAIRS.width]
