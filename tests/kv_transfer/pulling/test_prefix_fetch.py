"""KV that a peer has cached enters a pool, or nothing does, and never is a block lost."""

from __future__ import annotations

import pytest
from tests.kv_transfer.pulling.lending_peers import (
    BLOCK,
    NUM_FULL,
    SALT,
    LocalSource,
    audited,
    fill_cache,
    peers,
)
from tests.kv_transfer.replicas import PROMPT, kv_of

from baton.core.kv_pool import Holder, HolderKind


@pytest.mark.parametrize("num_ranks", [1, 2])
async def test_what_a_peer_has_cached_is_found_in_this_pool_afterwards(num_ranks: int) -> None:
    async with peers(num_ranks=num_ranks) as (world, fetcher):
        await fill_cache(world)
        source = LocalSource(world)

        async with fetcher.bring_in(PROMPT[:-1], SALT, source) as brought_in:
            assert (brought_in.num_held, brought_in.num_tokens) == (0, NUM_FULL * BLOCK)
            holder = Holder(HolderKind.REQUEST, "r")
            num_cached = await world.on_d.call(
                lambda: world.decode.pool.reserve(holder, PROMPT, SALT)
            )

        assert num_cached == NUM_FULL * BLOCK
        for block in range(NUM_FULL):
            for layer in range(world.decode.layout.num_layers):
                view = world.decode.pool.view(holder, block, layer)
                assert view == kv_of(PROMPT, block, layer)
        assert len(world.transport.opened) == num_ranks
        await world.on_d.call(lambda: world.decode.pool.release(holder))
        await audited(world)


async def test_only_what_this_pool_lacks_travels() -> None:
    async with peers() as (world, fetcher):
        await fill_cache(world, PROMPT[:8], "short")
        async with fetcher.bring_in(PROMPT[:8], SALT, LocalSource(world)) as first:
            assert first.num_tokens == 8
        await fill_cache(world, PROMPT, "long")

        async with fetcher.bring_in(PROMPT[:-1], SALT, LocalSource(world)) as second:
            assert (second.num_held, second.num_new) == (8, 12)
            assert second.report is not None
            assert second.report.num_bytes == 3 * world.decode.layout.block_bytes

        await audited(world)


async def test_a_peer_with_nothing_more_lends_nothing() -> None:
    async with peers() as (world, fetcher):
        async with fetcher.bring_in(PROMPT[:-1], SALT, LocalSource(world)) as brought_in:
            assert (brought_in.num_new, brought_in.note) == (0, "")
            assert brought_in.transfer_id is None

        await audited(world)


async def test_another_tenants_prefix_is_not_lent() -> None:
    async with peers() as (world, fetcher):
        await fill_cache(world)

        async with fetcher.bring_in(PROMPT[:-1], b"tenant", LocalSource(world)) as brought_in:
            assert brought_in.num_new == 0

        await audited(world)


async def test_while_they_are_held_the_blocks_are_not_evicted() -> None:
    async with peers() as (world, fetcher):
        await fill_cache(world)
        pool = world.decode.pool

        async with fetcher.bring_in(PROMPT[:-1], SALT, LocalSource(world)):
            num_left = pool.num_available
            greedy = Holder(HolderKind.REQUEST, "greedy")
            assert await world.on_d.call(lambda: pool.grow(greedy, num_left * BLOCK))
            assert pool.num_cached(PROMPT, SALT) == NUM_FULL * BLOCK

        await world.on_d.call(lambda: pool.release(greedy))
        await audited(world)


async def test_without_room_nothing_is_brought_in() -> None:
    async with peers() as (world, fetcher):
        await fill_cache(world)
        pool, greedy = world.decode.pool, Holder(HolderKind.REQUEST, "greedy")
        assert await world.on_d.call(lambda: pool.grow(greedy, pool.num_available * BLOCK))

        async with fetcher.bring_in(PROMPT[:-1], SALT, LocalSource(world)) as brought_in:
            assert brought_in.note == "nothing brought in from peer: no blocks left for it"

        await world.on_d.call(lambda: pool.release(greedy))
        await audited(world)
