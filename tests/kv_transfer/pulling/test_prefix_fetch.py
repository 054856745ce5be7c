"""KV that a peer has cached enters a pool, or nothing does: never an error, never a block lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial

import pytest
from tests.kv_transfer.replicas import (
    PROMPT,
    TRANSFER,
    DecodeReplica,
    PrefillReplica,
    kv_of,
    opening,
)
from tests.kv_transfer.world import Alter, World, unaltered

from baton.core.errors import BatonError, TransferCut, TransferError, Unavailable
from baton.core.ids import TransferId
from baton.core.kv_pool import Holder, HolderKind
from baton.core.messages import PullRequest
from baton.kv_transfer.handoff.messages import KvPiece
from baton.kv_transfer.pulling.lending import Lender
from baton.kv_transfer.pulling.prefix_fetch import FetchedPrefix, PrefixFetcher, PrefixOffer
from baton.kv_transfer.receiving.receiver import ReceiverConfig
from baton.kv_transfer.sending import pieces

SALT = b""
NUM_FULL = 5
"""Full blocks of the prompt."""
BLOCK = 4


class LocalSource:
    """The other replica of a `World`, asked without a wire."""

    name = "peer"

    def __init__(self, world: World, failure: BatonError | None = None) -> None:
        self.failure = failure
        self.num_closed = 0
        self._world = world
        self._lender = Lender(
            world.prefill.pool, world.prefill.sender, world.on_p, clock=world.decode.clock
        )
        world.prefill.on_ended = self._lender.ended

    @property
    def lender(self) -> Lender:
        return self._lender

    def request(self, tokens: Sequence[int], num_held: int = 0) -> PullRequest:
        return PullRequest(
            transfer_id=TRANSFER,
            receiver_epoch=self._world.decode.receiver.epoch,
            layout=self._world.decode.layout,
            tokens=tuple(tokens),
            num_held=num_held,
            time_left_ms=60_000,
        )

    @asynccontextmanager
    async def offer(
        self, transfer_id: TransferId, tokens: Sequence[int], salt: bytes, num_held: int
    ) -> AsyncIterator[PrefixOffer | None]:
        if self.failure is not None:
            raise self.failure
        request = PullRequest(
            transfer_id=transfer_id,
            receiver_epoch=self._world.decode.receiver.epoch,
            layout=self._world.decode.layout,
            tokens=tuple(tokens),
            salt=salt,
            num_held=num_held,
            time_left_ms=60_000,
        )
        async with aclosing(self._lender.lend(request)) as loan:
            offered = await anext(loan, None)
            yield (
                None
                if offered is None
                else PrefixOffer(
                    sender_epoch=offered.sender_epoch,
                    layout=offered.layout,
                    num_tokens=offered.num_tokens,
                    head_runs=offered.head_runs,
                    address=self._world.address,
                )
            )
            if offered is not None:
                await anext(loan, None)
        self.num_closed += 1


@asynccontextmanager
async def peers(
    alter: Alter = unaltered, num_ranks: int = 1
) -> AsyncIterator[tuple[World, PrefixFetcher]]:
    split = ReceiverConfig(min_stream_bytes=1)
    prefill, decode = (
        PrefillReplica(num_ranks=num_ranks),
        DecodeReplica(num_ranks=num_ranks, config=split),
    )
    world = World("memory", alter, prefill, decode)
    await world.start_serving()
    fetcher = PrefixFetcher(
        pool=world.decode.pool,
        owner=world.on_d,
        receiver=world.decode.receiver,
        fetcher=world.fetcher,
        timeout_s=60.0,
        clock=world.decode.clock,
    )
    try:
        yield world, fetcher
    finally:
        await world.fetcher.close()
        await world.stop_serving()
        world.on_p.stop()
        world.on_d.stop()


async def fill_cache(world: World, tokens: Sequence[int] = PROMPT, name: str = "before") -> None:
    """P computes a prompt and forgets the request: its full blocks stay in the cache."""
    prefill, transfer_id = world.prefill, TransferId(name)

    def fill() -> None:
        assert prefill.grant(world.decode.receiver.epoch, transfer_id, tuple(tokens))
        prefill.compute(transfer_id)
        prefill.finish(transfer_id)
        prefill.sender.abort(transfer_id, "only the cache was wanted")

    await world.on_p.call(fill)


async def audited(world: World) -> None:
    """Nothing is held on either side, once threads that read ahead have ended as well."""
    for owner, audit in ((world.on_p, world.prefill.audit), (world.on_d, world.decode.audit)):
        async with asyncio.timeout(60):
            while (report := await owner.call(audit)).leased or report.quarantined:
                assert report.violations == ()
                await asyncio.sleep(0.001)
        assert report.violations == ()
        assert report.live == 0


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
        patch.setattr(pieces, "MAX_SPAN_BLOCKS", 2)
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


async def test_without_room_nothing_is_brought_in() -> None:
    async with peers() as (world, fetcher):
        await fill_cache(world)
        pool, greedy = world.decode.pool, Holder(HolderKind.REQUEST, "greedy")
        assert await world.on_d.call(lambda: pool.grow(greedy, pool.num_available * BLOCK))

        async with fetcher.bring_in(PROMPT[:-1], SALT, LocalSource(world)) as brought_in:
            assert brought_in.note == "nothing brought in from peer: no blocks left for it"

        await world.on_d.call(lambda: pool.release(greedy))
        await audited(world)


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


async def test_the_call_cut_by_the_borrower_ends_the_loan() -> None:
    async with peers() as (world, _):
        await fill_cache(world)
        source = LocalSource(world)
        loan = source.lender.lend(source.request(PROMPT))
        await anext(loan)
        assert world.prefill.sender.num_open == 1

        await loan.aclose()

        await audited(world)


async def test_a_loan_is_called_back_when_running_requests_need_the_blocks() -> None:
    async with peers() as (world, _):
        await fill_cache(world)
        source = LocalSource(world)
        loan = source.lender.lend(source.request(PROMPT))
        await anext(loan)

        was_called_back = await world.on_p.call(source.lender.call_back)

        assert was_called_back
        assert await anext(loan, None) is None
        assert not await world.on_p.call(source.lender.call_back)
        await audited(world)


async def test_no_more_loans_end_than_must_while_blocks_of_ended_ones_are_being_read() -> None:
    async with peers() as (world, _):
        await fill_cache(world)
        source, sender = LocalSource(world), world.prefill.sender
        lender, names = source.lender, ("idle", "read", "read too")
        loans, readings = {}, {}
        for name in names:  # the youngest comes last
            request = replace(source.request(PROMPT), transfer_id=TransferId(name))
            loans[name] = lender.lend(request)
            await anext(loans[name])
        for name in names[1:]:
            asked = replace(opening(world.prefill, world.decode), transfer_id=TransferId(name))
            readings[name] = sender.begin_read(sender.open(asked))

        def left() -> set[str]:
            return {name for name in names if sender.computation(TransferId(name)) is not None}

        assert await world.on_p.call(lender.call_back)
        assert left() == {"read", "read too"}  # what comes back at once goes first
        assert not await world.on_p.call(lender.call_back)
        assert not await world.on_p.call(lender.call_back)
        assert sender.num_open == 1  # one is enough until its blocks have come back
        for reading in readings["read too"]:
            await world.on_p.call(partial(sender.end_read, reading))
        assert left() == {"read"}
        assert not await world.on_p.call(lender.call_back)
        assert sender.num_open == 0

        for reading in readings["read"]:
            await world.on_p.call(partial(sender.end_read, reading))
        for loan in loans.values():
            assert await anext(loan, None) is None
        await audited(world)


async def test_of_a_tenants_blocks_a_loan_is_called_back_whoever_borrowed_them() -> None:
    async with peers() as (world, _):
        await fill_cache(world)  # on the account of ""
        source = LocalSource(world)
        lender = source.lender
        loan = lender.lend(replace(source.request(PROMPT), tenant="borrower"))
        await anext(loan)

        assert not await world.on_p.call(lambda: lender.call_back("borrower"))
        assert await world.on_p.call(lambda: lender.call_back(""))
        await loan.aclose()
        await audited(world)


async def test_what_would_pass_the_share_of_the_pool_is_not_lent() -> None:
    async with peers() as (world, _):
        long_prompt = tuple(range(17 * BLOCK))  # of 32 blocks
        await fill_cache(world, long_prompt)
        source = LocalSource(world)

        with pytest.raises(BatonError, match="17 blocks would be lent to peers, of 32"):
            await anext(source.lender.lend(source.request(long_prompt)))

        await audited(world)


async def test_a_loan_never_takes_the_blocks_of_a_transfer_that_comes_here() -> None:
    async with peers() as (world, _):
        await fill_cache(world)
        incoming = Holder(HolderKind.LEASE, TRANSFER)  # as a receiver on that replica holds them
        world.prefill.pool.reserve(incoming, (1, 2, 3), SALT)
        source = LocalSource(world)

        with pytest.raises(TransferError, match="draw a new transfer id"):
            await anext(source.lender.lend(source.request(PROMPT)))

        assert len(world.prefill.pool.table(incoming)) == 1
        with pytest.raises(TransferError, match="draw a new transfer id"):
            world.prefill.grant(world.decode.receiver.epoch)


async def test_a_loan_of_nothing_new_holds_nothing() -> None:
    async with peers() as (world, _):
        await fill_cache(world)
        source = LocalSource(world)

        offers = [it async for it in source.lender.lend(source.request(PROMPT, NUM_FULL * BLOCK))]

        assert offers == []
        await audited(world)
        assert not world.prefill.pool.table(Holder(HolderKind.LEASE, TRANSFER))


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
