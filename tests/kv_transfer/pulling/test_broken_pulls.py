"""A pull that ends early costs a note, never an error or a block; what had come by then is kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

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
from tests.kv_transfer.replicas import PROMPT, TRANSFER

from baton.core.errors import TransferCut, Unavailable
from baton.core.ids import TransferId
from baton.kv_transfer.handoff.messages import KvPiece
from baton.kv_transfer.pulling.prefix_fetch import FetchedPrefix, PrefixOffer
from baton.kv_transfer.sending import stream


async def test_a_source_that_fails_is_a_note_and_no_error() -> None:
    async with peers() as (world, fetcher):
        source = LocalSource(world, failure=Unavailable("it has left"))

        async with fetcher.bring_in(PROMPT[:-1], SALT, source) as brought_in:
            assert brought_in.note == "nothing brought in from peer: it has left"

        await audited(world)


async def test_a_transfer_that_breaks_off_for_good_brings_nothing_in() -> None:
    def cut(number: int, piece: KvPiece) -> KvPiece:
        raise TransferCut("always")

    async with peers(cut) as (world, fetcher):
        await fill_cache(world)

        async with fetcher.bring_in(PROMPT[:-1], SALT, LocalSource(world)) as brought_in:
            assert brought_in.num_new == 0
            assert "always" in brought_in.note
            assert world.decode.pool.num_cached(PROMPT, SALT) == 0

        await world.fetcher.close()
        await audited(world)


async def test_what_came_before_a_transfer_broke_off_for_good_is_not_asked_for_again() -> None:
    is_broken = True

    def cut(number: int, piece: KvPiece) -> KvPiece:
        if is_broken and piece.first_block + piece.num_blocks > 2:
            raise TransferCut("always")
        return piece

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "MAX_SPAN_BLOCKS", 2)
        async with peers(cut) as (world, fetcher):
            await fill_cache(world)

            async with fetcher.bring_in(PROMPT[:-1], SALT, LocalSource(world)) as first:
                assert (first.num_held, first.num_tokens) == (0, 2 * BLOCK)
                assert "no more than 8 tokens brought in from peer" in first.note
            is_broken = False
            async with fetcher.bring_in(PROMPT[:-1], SALT, LocalSource(world)) as second:
                assert (second.num_held, second.num_tokens) == (2 * BLOCK, NUM_FULL * BLOCK)
                assert second.report is not None
                assert second.report.num_bytes == 3 * world.decode.layout.block_bytes

            await world.fetcher.close()
            await audited(world)


def test_what_is_kept_of_one_source_counts_as_brought_in_whatever_the_next_one_has() -> None:
    kept = FetchedPrefix(num_held=4, num_tokens=12, note="cut")
    rest = FetchedPrefix(transfer_id=TRANSFER, num_held=12, num_tokens=20)
    nothing = FetchedPrefix(num_held=12, num_tokens=12)

    assert (kept.then(rest).num_held, kept.then(rest).num_new) == (4, 16)
    assert kept.then(nothing).num_new == kept.then(FetchedPrefix(note="cut")).num_new == 8
    assert FetchedPrefix(note="cut").then(rest).num_new == nothing.then(rest).num_new == 8


async def test_an_error_inside_the_context_lets_the_blocks_go() -> None:
    async with peers() as (world, fetcher):
        await fill_cache(world)

        with pytest.raises(RuntimeError, match="the engine refused"):
            async with fetcher.bring_in(PROMPT[:-1], SALT, LocalSource(world)):
                raise RuntimeError("the engine refused")

        await audited(world)


async def test_a_bring_in_that_is_cancelled_holds_nothing() -> None:
    first_piece = asyncio.Event()

    async with peers() as (world, fetcher):
        await fill_cache(world)
        source = LocalSource(world)

        async def bring_in() -> None:
            async with fetcher.bring_in(PROMPT[:-1], SALT, source):
                first_piece.set()
                await asyncio.Event().wait()

        bringing = asyncio.create_task(bring_in())
        await first_piece.wait()
        bringing.cancel()
        await asyncio.gather(bringing, return_exceptions=True)

        await audited(world)


class LyingSource(LocalSource):
    """Offers more tokens than it was asked for."""

    @asynccontextmanager
    async def offer(
        self, transfer_id: TransferId, tokens: Sequence[int], salt: bytes, num_held: int
    ) -> AsyncIterator[PrefixOffer | None]:
        async with super().offer(transfer_id, tokens, salt, num_held) as offer:
            assert offer is not None
            yield replace(offer, num_tokens=len(tokens) + 1)


async def test_an_offer_of_more_than_was_asked_for_is_a_note() -> None:
    async with peers() as (world, fetcher):
        await fill_cache(world)

        async with fetcher.bring_in(PROMPT[:20], SALT, LyingSource(world)) as brought_in:
            assert brought_in.transfer_id is None
            assert "21 tokens were offered" in brought_in.note

        await audited(world)
