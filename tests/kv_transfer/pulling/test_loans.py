"""Loans of cached blocks: they end with their call, are called back, and stay within a share."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

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
from tests.kv_transfer.replicas import PROMPT, TRANSFER, opening

from baton.core.errors import BatonError, TransferError
from baton.core.ids import TransferId
from baton.core.kv_pool import Holder, HolderKind


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
            request = source.request(PROMPT, transfer_id=TransferId(name))
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
