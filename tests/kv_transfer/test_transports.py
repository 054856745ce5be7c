"""How KV arrives, over each transport."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from tests.kv_transfer.replicas import (
    LAYOUT,
)
from tests.kv_transfer.world import (
    KV_BYTES,
    PATIENT,
    connected,
    each_transport,
)

from baton.core.errors import (
    InvalidConfig,
    TransferCut,
)
from baton.core.ids import TransferId
from baton.core.replicas import Role
from baton.kv_transfer import transports
from baton.kv_transfer.handoff.messages import KvPiece, Outcome
from baton.kv_transfer.transport.nixl.buffers import MAX_BUFFER_BYTES
from baton.kv_transfer.transports import TransportParts, create_transport, registering
from baton.platform.config.deployment import DeploymentConfig, override
from baton.platform.replica.replica import engine_config


@each_transport
async def test_a_computed_prompt_arrives_whole_and_equal(name: str) -> None:
    async with connected(name) as it:
        reservation = await it.grant()
        await it.compute()

        report = await it.fetch(reservation)

        went_by = "grpc" if name == "auto" else name  # at first contact
        assert (report.transport, report.num_bytes) == (went_by, KV_BYTES)
        assert (report.num_duplicates, report.num_reopened) == (0, 0)
        await it.on_d.call(it.decode.adopt)
        assert it.decode.holds_kv()
        await it.assert_nothing_is_left()
        assert await it.ask() is Outcome.SEALED


@each_transport
async def test_kv_arrives_chunk_by_chunk_while_it_is_computed(name: str) -> None:
    async with connected(name) as it:
        fetching = asyncio.create_task(it.fetch(await it.grant()))
        for num_tokens, num_full in ((3, 0), (9, 2), (13, 3), (20, 5)):
            await it.compute(num_tokens)
            await it.has_arrived(num_full * LAYOUT.block_bytes)
        assert not fetching.done()

        await it.compute()

        assert (await fetching).num_bytes == KV_BYTES
        await it.on_d.call(it.decode.adopt)
        assert it.decode.holds_kv()
        await it.assert_nothing_is_left()


@each_transport
async def test_blocks_of_the_receivers_own_prefix_cache_do_not_travel(name: str) -> None:
    async with connected(name) as it:
        first = await it.grant()
        await it.compute()
        await it.fetch(first)
        await it.on_d.call(it.decode.adopt)
        again = TransferId("kv-again")

        reservation = await it.grant(again)
        await it.compute(transfer_id=again)
        report = await it.fetch(reservation)

        assert (reservation.streams[0].blocks, reservation.num_cached) == (range(5, 6), 20)
        assert report.num_bytes == LAYOUT.block_bytes
        await it.on_d.call(lambda: it.decode.adopt(again))
        assert it.decode.holds_kv(again)
        await it.assert_nothing_is_left()


@each_transport
async def test_a_cut_stream_is_opened_again_where_blocks_are_missing(name: str) -> None:
    def cut_twice(number: int, piece: KvPiece) -> KvPiece:
        if number in (5, 7):
            raise TransferCut("a broken wire")
        return piece

    async with connected(name, alter=cut_twice) as it:
        reservation = await it.grant()
        await it.compute()

        report = await it.fetch(reservation)

        # A piece is two blocks of a layer, a reading four: blocks 0-3 are there after four pieces.
        assert [request.first_block for request in it.transport.opened] == [0, 4, 4]
        assert (report.num_reopened, report.num_duplicates) == (2, 2)
        await it.on_d.call(it.decode.adopt)
        assert it.decode.holds_kv()
        await it.assert_nothing_is_left()


@each_transport
async def test_a_transfer_outlives_its_connection(name: str) -> None:
    async with connected(name, fetching=PATIENT) as it:
        fetching = asyncio.create_task(it.fetch(await it.grant()))
        await it.compute(8)
        await it.has_arrived(2 * LAYOUT.block_bytes)

        await it.stop_serving()
        await it.start_serving()
        await it.compute()

        report = await fetching
        assert report.num_reopened > 0
        await it.on_d.call(it.decode.adopt)
        assert it.decode.holds_kv()
        await it.assert_nothing_is_left()


@pytest.mark.parametrize("has_nixl", [True, False])
def test_where_kv_may_come_by_nixl_its_buffers_are_counted(
    monkeypatch: pytest.MonkeyPatch, has_nixl: bool
) -> None:
    monkeypatch.setattr(transports, "find_spec", lambda name: object() if has_nixl else None)

    anyhow, by_grpc = (
        engine_config(override(DeploymentConfig(), {"transfer.transport": name}), Role.DECODE)
        for name in ("auto", "grpc")
    )

    assert anyhow.buffer_bytes == (MAX_BUFFER_BYTES if has_nixl else 0)
    assert by_grpc.buffer_bytes == 0


def test_a_transport_nobody_registered_is_refused_by_name() -> None:
    with pytest.raises(InvalidConfig, match="'pigeon'; there are auto, memory, shm"):
        create_transport("pigeon", TransportParts())


def test_a_rank_registers_its_memory_only_for_a_transport_that_is_there_and_needs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def with_nixl_lacking(what: str) -> None:
        kind = replace(transports.TRANSPORTS["nixl"], lacks=lambda: what)
        monkeypatch.setattr(transports, "TRANSPORTS", {**transports.TRANSPORTS, "nixl": kind})

    with_nixl_lacking("NIXL")
    assert registering(DeploymentConfig().kv_ways) is None
    with_nixl_lacking("")
    assert registering(DeploymentConfig().kv_ways) is not None
    assert registering(["shm", "grpc", "nccl"]) is None
