"""KV of several ranks, which NIXL reads from the memory of each."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import pytest
from tests.kv_transfer.replicas import LAYOUT, PROMPT, TRANSFER
from tests.kv_transfer.transport.nixl.test_nixl import Handle
from tests.kv_transfer.transport.nixl.test_nixl_on_device import Fabric, addresses, introduced
from tests.kv_transfer.world import World, connected_ranks

from baton.core.errors import TransferError
from baton.core.kv_layout import KvLayout
from baton.engine.memory.kv_cache import KvCache
from baton.kv_transfer import transports
from baton.kv_transfer.transport.control.client import ControlClient
from baton.kv_transfer.transport.nixl.nixl import NixlTransport
from baton.kv_transfer.transport.nixl.reads import Agent
from baton.kv_transfer.transport.nixl.sending import NixlSending, RegisteredMemory
from baton.kv_transfer.transports import TransportKind

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
    introduce = partial(introduced, fabric) if have_agents else None
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

    cache = KvCache(FOUR_HEADS, 1)
    assert RegisteredMemory(create).introduce(cache.arena, cache.rows).word == b""
    assert "NIXL does not work at this rank" in caplog.text
