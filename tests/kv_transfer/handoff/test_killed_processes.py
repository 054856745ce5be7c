"""kill -9 of either side, at every state of a lease: the other one loses that transfer only."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.kv_transfer.handoff.half_world import Nursery, OtherProcess, open_nursery
from tests.kv_transfer.replicas import LAYOUT, TRANSFER
from tests.kv_transfer.world import KV_BYTES, World, connected

from baton.core.errors import TransferError
from baton.core.ids import TransferId
from baton.kv_transfer.handoff.messages import Outcome, SettleTransfer
from baton.kv_transfer.handoff.reservation import Reservation
from baton.kv_transfer.transports import usable_transports

AGAIN = TransferId("kv-again")
each_transport = pytest.mark.parametrize(
    "name", [name for name in usable_transports() if name != "memory"]
)


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    with open_nursery(tmp_path_factory.mktemp("nursery")) as it:
        yield it


@asynccontextmanager
async def beside_another(nursery: Nursery, name: str) -> AsyncIterator[tuple[World, OtherProcess]]:
    if foreign_maps():
        gc.collect()  # of an earlier test, in a cycle
    other = await nursery.start(name)
    try:
        async with connected(name) as it:
            yield it, other
    finally:
        await other.kill()


async def granted_by(
    other: OtherProcess, it: World, transfer_id: TransferId = TRANSFER
) -> Reservation:
    assert await other.ask("grant", receiver=it.decode.receiver.epoch, transfer_id=transfer_id)
    it.decode.sender_address = other.address
    reservation = await it.on_d.call(lambda: it.decode.reserve(other.sender, transfer_id))
    assert reservation is not None
    return reservation


def foreign_maps() -> int:
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sum("memfd:baton-kv" in line and " r--s " in line for line in lines)


async def holds_nothing(it: World) -> None:
    """The receiver's books balance, and no memory of a dead process stays."""
    await it.fetcher.close()
    report = await it.on_d.call(it.decode.audit)
    assert report.violations == ()
    assert report.leased == report.quarantined == 0
    async with asyncio.timeout(60):
        while foreign_maps():
            await asyncio.sleep(0.01)


async def nothing(it: World, other: OtherProcess) -> None:
    """The lease stays RESERVED: nothing is computed."""


async def some_pieces(it: World, other: OtherProcess) -> None:
    """FILLING."""
    await other.ask("compute", num_tokens=8)
    await it.has_arrived(2 * LAYOUT.block_bytes)


@each_transport
@pytest.mark.parametrize("until", [nothing, some_pieces])
async def test_a_sender_killed_in_mid_transfer_costs_its_receiver_that_transfer(
    nursery: Nursery, name: str, until: Callable[[World, OtherProcess], Awaitable[None]]
) -> None:
    async with beside_another(nursery, name) as (it, other):
        fetching = asyncio.create_task(it.fetch(await granted_by(other, it)))
        while not it.transport.opened:
            await asyncio.sleep(0.001)
        await until(it, other)

        await other.kill()

        with pytest.raises(TransferError):
            async with asyncio.timeout(60):
                await fetching
        await holds_nothing(it)


@each_transport
async def test_a_sender_killed_before_it_hears_of_the_seal_costs_nothing(
    nursery: Nursery, name: str
) -> None:
    async with beside_another(nursery, name) as (it, other):
        reservation = await granted_by(other, it)
        await other.ask("compute", num_tokens=None)
        is_killed, settle = asyncio.Event(), it.transport.settle

        async def settle_late(address: str, request: SettleTransfer) -> Outcome:
            await is_killed.wait()
            return await settle(address, request)

        it.transport.settle = settle_late  # type: ignore[method-assign]
        report = await it.fetch(reservation)

        await other.kill()
        is_killed.set()

        assert report.num_bytes == KV_BYTES
        await it.on_d.call(it.decode.adopt)
        assert it.decode.holds_kv()
        await holds_nothing(it)


@each_transport
async def test_a_receiver_goes_on_with_the_next_sender(nursery: Nursery, name: str) -> None:
    async with beside_another(nursery, name) as (it, other):
        reservation = await granted_by(other, it)
        await other.kill()
        with pytest.raises(TransferError):
            await it.fetch(reservation)

        successor = await nursery.start(name)
        try:
            again = await granted_by(successor, it, AGAIN)
            await successor.ask("compute", num_tokens=None, transfer_id=AGAIN)
            await it.fetch(again)
            await it.on_d.call(lambda: it.decode.adopt(AGAIN))
            assert it.decode.holds_kv(AGAIN)
        finally:
            await successor.kill()
        await holds_nothing(it)


def stuck_at_piece(number: int) -> Callable[[OtherProcess], Awaitable[None]]:
    async def stick(other: OtherProcess) -> None:
        await other.ask("stick_at_piece", number=number)

    return stick


async def stuck_when_sealed(other: OtherProcess) -> None:
    await other.ask("stick_when_sealed")


@each_transport
@pytest.mark.parametrize(
    ("sticking", "is_stopped_first"),
    [
        pytest.param(stuck_at_piece(1), False, id="RESERVED"),
        pytest.param(stuck_at_piece(5), False, id="FILLING"),
        pytest.param(stuck_at_piece(5), True, id="FILLING, and stopped before"),
        pytest.param(stuck_when_sealed, False, id="SEALED"),
    ],
)
async def test_a_killed_receiver_leaves_nothing_with_its_sender(
    nursery: Nursery,
    name: str,
    sticking: Callable[[OtherProcess], Awaitable[None]],
    is_stopped_first: bool,
) -> None:
    async with beside_another(nursery, name) as (it, other):
        await it.on_p.call(lambda: it.prefill.grant(other.receiver))
        await it.compute()
        await sticking(other)
        sender = it.prefill.sender.epoch
        assert await other.ask("fetch", address=it.address, sender=sender) == "stuck"
        assert TRANSFER in it.prefill.sender.lease_ids
        if is_stopped_first:
            other.stop()

        await other.kill()

        # The prefill call that the transfer belongs to is cut as well.
        await it.on_p.call(lambda: it.prefill.sender.abort(TRANSFER, "the call was cut"))
        await it.assert_nothing_is_left()


@each_transport
async def test_a_sender_goes_on_with_the_next_receiver(nursery: Nursery, name: str) -> None:
    async with beside_another(nursery, name) as (it, other):
        await it.on_p.call(lambda: it.prefill.grant(other.receiver))
        await it.compute()
        await other.ask("stick_at_piece", number=2)
        sender = it.prefill.sender.epoch
        assert await other.ask("fetch", address=it.address, sender=sender) == "stuck"
        await other.kill()

        successor = await nursery.start(name)
        try:
            await it.on_p.call(lambda: it.prefill.grant(successor.receiver, AGAIN))
            await it.compute(transfer_id=AGAIN)
            wanted = {"address": it.address, "sender": sender, "transfer_id": AGAIN}
            assert await successor.ask("fetch", **wanted) == "equal"
        finally:
            await successor.kill()
        await it.on_p.call(lambda: it.prefill.sender.abort(TRANSFER, "the call was cut"))
        await it.assert_nothing_is_left()


def test_nothing_of_shared_memory_is_left_on_the_machine() -> None:
    """An arena has no name that could outlive its processes."""
    assert not [name for name in os.listdir("/dev/shm") if "baton" in name]
