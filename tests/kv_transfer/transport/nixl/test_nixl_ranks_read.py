"""Each rank of a D reads, verifies and writes the heads that it keeps, with tensors of this host.

D's lead hears what was wrong. It must not touch the blocks of another rank: whatever would do so
raises here.
"""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.kv_transfer.replicas import PROMPT, TRANSFER
from tests.kv_transfer.transport.nixl.test_nixl import Handle
from tests.kv_transfer.transport.nixl.test_nixl_on_device import (
    SECOND,
    WIDE,
    Fabric,
    addresses,
    on_devices,
)
from tests.kv_transfer.world import World

from baton.core.errors import TransferAborted, TransferCut, TransferError
from baton.core.kv_layout import OUTPUTS, DraftFeatures, KvLayout
from baton.core.kv_pool import DeviceWrite
from baton.engine.blocks.block_bytes import Targets
from baton.engine.memory.device_rows import DeviceRows
from baton.engine.ranks.sharded_cache import ShardedCache
from baton.kv_transfer.receiving.receiver import AbortReason
from baton.kv_transfer.transport.auto.probe import Prober
from baton.kv_transfer.transport.control.client import ControlClient
from baton.kv_transfer.transport.nixl import sending
from baton.kv_transfer.transport.nixl.nixl import NixlTransport
from baton.kv_transfer.transport.nixl.rank_reads import RankReads
from baton.kv_transfer.transport.nixl.reads import NixlReads

FOUR_HEADS = replace(WIDE, num_kv_heads=4)
LIMIT_S = 60.0
"""Only keeps a failing test from hanging."""


def by_lead(*_: object) -> None:
    raise AssertionError("the lead has touched another rank's blocks")


@asynccontextmanager
async def ranks_read(  # noqa: PLR0913  # both sides, and what may happen to them
    patch: pytest.MonkeyPatch,
    fabric: Fabric,
    num_ranks: tuple[int, int] = (2, 2),
    decode_layout: KvLayout | None = None,
    *,
    layout: KvLayout = FOUR_HEADS,
    is_looked_at: bool = False,
    is_rank_gone: bool = False,
) -> AsyncIterator[World]:
    """`num_ranks`: P's and D's. `is_looked_at`: see `on_devices`; then D's lead may write, too.
    Unless `is_rank_gone`, all buffers must be given back in the end."""
    of_ranks: list[RankReads] = []

    def noted(*about: Any) -> RankReads:
        of_ranks.append(RankReads(*about))
        return of_ranks[-1]

    patch.setattr(sending, "RankReads", noted)
    async with on_devices(
        patch, fabric, layout, decode_layout, is_looked_at=is_looked_at, num_ranks=num_ranks
    ) as it:
        cache: Any = it.decode.cache
        assert isinstance(cache, ShardedCache)
        if not is_looked_at:
            patch.setattr(cache, "_gathered", by_lead)
            patch.setattr(cache, "_scatter", by_lead)
        yield it
        fabric.let_go()
        assert isinstance(it.inner, NixlTransport)
        await until_given_back([it.inner._reads])
        if not is_rank_gone:
            await until_given_back([each._reads for each in of_ranks])
            assert not any(each._read_by_id for each in of_ranks)
        for share in cache.arena.shares[1:]:
            assert share.line is not None
            share.line.close()


async def until_given_back(of_all: Sequence[NixlReads | None]) -> None:
    """Every buffer can be used again."""
    async with asyncio.timeout(LIMIT_S):
        for buffers in [reads._buffers for reads in of_all if reads is not None]:
            while sum(spare.num_bytes for spare in buffers._spare) < buffers.num_bytes:
                await asyncio.sleep(0.001)


def readers_of(fabric: Fabric) -> dict[str, list[Handle]]:
    """What was read, by the agent whose buffers it landed in."""
    found = defaultdict(list)
    for handle in fabric.posted:
        places = [address for address, _, _ in handle.local]
        [name] = (
            name
            for name, agent in fabric.agents.items()
            if all(agent._has(place, handle.local[0][1]) for place in places)
        )
        found[name].append(handle)
    return found


async def until_posted(fabric: Fabric, count: int) -> None:
    async with asyncio.timeout(LIMIT_S):
        while len(fabric.posted) < count:
            await asyncio.sleep(0.001)


async def assert_all_came(it: World) -> None:
    await it.on_d.call(lambda: it.decode.adopt(TRANSFER, PROMPT))
    assert it.decode.holds_kv(TRANSFER)
    await it.on_d.call(lambda: it.decode.finish(TRANSFER))
    await it.assert_nothing_is_left()


@pytest.mark.parametrize("num_ranks", [(1, 2), (2, 2), (4, 2), (2, 4)])
async def test_each_rank_reads_the_heads_that_it_keeps_and_no_byte_comes_to_the_lead(
    num_ranks: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    fabric = Fabric()
    async with ranks_read(monkeypatch, fabric, num_ranks) as it:
        reservation = await it.grant()
        await it.compute()

        report = await it.fetch(reservation)

        kv_bytes = FOUR_HEADS.num_blocks_for(len(PROMPT)) * FOUR_HEADS.block_bytes
        assert (report.num_bytes, report.num_asked_again) == (kv_bytes, 0)
        read_bytes = [
            sum(length for handle in handles for _, length, _ in handle.local)
            for handles in readers_of(fabric).values()
        ]
        assert read_bytes == [kv_bytes // num_ranks[1]] * num_ranks[1]
        await assert_all_came(it)


async def test_wrong_bytes_at_one_rank_are_noticed_there_and_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found: list[list[list[int]]] = []
    write_rows = RankReads._write_rows

    async def noted(self: RankReads, writes: list[DeviceWrite], unit_bytes: int) -> list[list[int]]:
        if not found:  # a bit falls over at this rank, and at no other
            self._landed(writes[0].rows).memory[3] ^= 1
        found.append(await write_rows(self, writes, unit_bytes))
        return found[-1]

    monkeypatch.setattr(RankReads, "_write_rows", noted)
    async with ranks_read(monkeypatch, Fabric()) as it:
        reservation = await it.grant()
        await it.compute()

        report = await it.fetch(reservation)

        assert report.num_asked_again == 1
        assert found[0][0] == [0] and not any(any(each) for each in found[1:])
        await assert_all_came(it)


async def test_a_cancelled_handoff_frees_its_blocks_and_each_rank_keeps_its_buffer_until_it_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fabric = Fabric(is_holding=True)
    async with ranks_read(monkeypatch, fabric) as it:
        reservation = await it.grant()
        await it.compute()
        fetching = asyncio.create_task(it.fetch(reservation))
        await until_posted(fabric, 2)

        fetching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await fetching
        await it.assert_nothing_is_left()

        given_up, fabric.is_holding = [*fabric.posted], False
        assert len(readers_of(fabric)) == 2
        again = await it.grant(SECOND)
        await it.compute(transfer_id=SECOND)
        await it.fetch(again)
        later = fabric.posted[len(given_up) :]
        assert not {*addresses(given_up)} & {*addresses(later)}
        fabric.let_go()
        await it.on_d.call(lambda: it.decode.adopt(SECOND))
        assert it.decode.holds_kv(SECOND)


async def test_a_rank_that_ends_while_it_reads_ends_the_handoff_and_frees_every_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fabric = Fabric(is_holding=True)
    async with ranks_read(monkeypatch, fabric, is_rank_gone=True) as it:
        reservation = await it.grant()
        await it.compute()
        fetching = asyncio.create_task(it.fetch(reservation))
        await until_posted(fabric, 2)

        [_, other] = it.decode.cache.arena.shares
        assert other.line is not None
        other.line.close()  # as the end of its process does

        async with asyncio.timeout(LIMIT_S):
            with pytest.raises(TransferError, match="rank 1 of this replica is gone"):
                await fetching
        await it.assert_nothing_is_left()


async def test_a_rank_whose_read_fails_fails_the_piece_and_it_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read, num_read = RankReads._read, 0

    async def failing_once(self: RankReads, *about: Any) -> None:
        nonlocal num_read
        num_read += 1
        if num_read == 1:
            raise TransferCut("its link was down for a moment")
        await read(self, *about)

    monkeypatch.setattr(RankReads, "_read", failing_once)
    async with ranks_read(monkeypatch, Fabric()) as it:
        reservation = await it.grant()
        await it.compute()

        report = await it.fetch(reservation)

        assert (report.num_reopened, report.num_asked_again) == (1, 0)
        await assert_all_came(it)


async def test_blocks_that_another_rank_still_writes_stay_in_quarantine_when_their_lease_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with ranks_read(monkeypatch, Fabric()) as it:
        is_writing, may_end = threading.Event(), threading.Event()
        cache: Any = it.decode.cache
        own_rows, write_rows = cache.own.rows, DeviceRows.write_rows

        def slowly(rows: DeviceRows, *arguments: Any) -> list[list[int]]:
            if rows._block_bytes is not own_rows._block_bytes:  # not of the lead
                is_writing.set()
                may_end.wait(LIMIT_S)
            return write_rows(rows, *arguments)

        monkeypatch.setattr(DeviceRows, "write_rows", slowly)
        reservation = await it.grant()
        await it.compute()
        fetching = asyncio.create_task(it.fetch(reservation))
        assert await asyncio.to_thread(is_writing.wait, LIMIT_S)

        await it.on_d.call(lambda: it.decode.receiver.abort(TRANSFER, AbortReason.PRESSURE))

        await asyncio.sleep(0.1)
        num_blocks = FOUR_HEADS.num_blocks_for(len(PROMPT))
        assert (await it.on_d.call(it.decode.audit)).quarantined == num_blocks
        may_end.set()
        with pytest.raises(TransferAborted):
            await fetching
        await it.assert_nothing_is_left()


@pytest.mark.parametrize("changes", [{"block_size": 8}, {"dtype": "int8"}])
async def test_what_must_be_regrouped_or_converted_is_read_by_the_lead_alone(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    fabric = Fabric()
    other = replace(FOUR_HEADS, **changes)
    async with ranks_read(monkeypatch, fabric, (2, 2), other, is_looked_at=True) as it:
        reservation = await it.grant()
        await it.compute()

        report = await it.fetch(reservation)

        assert report.num_asked_again == 0
        assert len(readers_of(fabric)) == 1
        await it.on_d.call(it.decode.adopt)
        await it.assert_nothing_is_left()


async def test_features_which_every_rank_keeps_are_fetched_once_by_the_lead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fabric = Fabric()
    features = DraftFeatures(kind=OUTPUTS, width=64, dtype="float32")
    layout = replace(FOUR_HEADS, features=features)
    async with ranks_read(monkeypatch, fabric, layout=layout, is_looked_at=True) as it:
        reservation = await it.grant()
        await it.compute()

        report = await it.fetch(reservation)

        num_blocks = layout.num_blocks_for(len(PROMPT))
        assert report.num_bytes == num_blocks * layout.block_bytes
        read_bytes = [
            sum(length for handle in handles for _, length, _ in handle.local)
            for handles in readers_of(fabric).values()
        ]
        assert sum(read_bytes) == num_blocks * layout.block_bytes
        assert max(read_bytes) - min(read_bytes) == num_blocks * layout.feature_bytes
        own, other = it.decode.cache.arena.shares
        assert torch.equal(own.planes[-1], other.planes[-1])
        await assert_all_came(it)


async def test_what_ranks_cannot_write_as_it_lies_there_is_looked_at_on_the_leads_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fabric = Fabric()
    monkeypatch.setattr(Targets, "takes_rows", lambda *_: False)  # some of it was there already
    async with ranks_read(monkeypatch, fabric, is_looked_at=True) as it:
        reservation = await it.grant()
        await it.compute()

        report = await it.fetch(reservation)

        assert (len(readers_of(fabric)), report.num_asked_again) == (2, 0)
        await assert_all_came(it)


async def test_a_probe_has_what_ranks_have_read_summed_up_by_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fabric = Fabric()
    async with ranks_read(monkeypatch, fabric) as it:
        sender, receiver = it.prefill.sender.epoch, it.decode.receiver.epoch

        prober = Prober(ControlClient(it.parts.channels))
        found = await prober.measure(
            it.transport, it.address, sender, receiver, FOUR_HEADS.block_bytes
        )

        assert found.num_bytes == FOUR_HEADS.block_bytes
        assert len(readers_of(fabric)) == 2
        await it.assert_nothing_is_left()
