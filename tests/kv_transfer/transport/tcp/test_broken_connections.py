"""Connections of raw TCP that break, stall, are given up, or carry something else."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeAlias

import pytest
from tests.kv_transfer.replicas import TRANSFER
from tests.kv_transfer.transport.control_ends import (
    PreparedSide,
)
from tests.kv_transfer.transport.tcp.sharing import NO_SECRET, pair, sharing, until
from tests.kv_transfer.world import KV_BYTES, connected

from baton.core.block_views import BlockViews
from baton.core.errors import TransferAborted, TransferCut
from baton.kv_transfer.handoff.lease import ReceiverState
from baton.kv_transfer.transport.lent import Loan
from baton.kv_transfer.transport.tcp import connection as connections
from baton.kv_transfer.transport.tcp import serving
from baton.kv_transfer.transport.tcp.connection import Arrival, DataConnection
from baton.kv_transfer.transport.tcp.frames import HEADER, Ticket
from baton.kv_transfer.transport.tcp.serving import ServedConnection

Read: TypeAlias = Callable[[Arrival, Sequence[memoryview]], None]
Sent: TypeAlias = deque[tuple[int, Loan]]


def summed(arrival: Arrival, targets: Sequence[memoryview]) -> None:
    [memory] = targets
    arrival.read_summed(BlockViews(memory, [0], memory.nbytes), 64)


async def test_nothing_is_written_once_a_connection_is_given_up() -> None:
    ours, theirs = pair()
    connection, memory = DataConnection(ours, "tcp from here"), memoryview(bytearray(64))
    arrival = connection.expect(Ticket(7, NO_SECRET, 64), 1)
    reading = asyncio.create_task(asyncio.to_thread(arrival.read, [memory]))
    theirs.sendall(HEADER.pack(7, 64) + b"\1" * 16)
    await until(lambda: memory[0] == 1)

    connection.close("its stream was given up")

    with suppress(OSError):
        theirs.sendall(b"\2" * 48)
    with pytest.raises(TransferCut):
        await reading
    assert bytes(memory) == b"\1" * 16 + bytes(48)
    theirs.close()


@pytest.mark.parametrize(
    "answer",
    [HEADER.pack(8, 64), HEADER.pack(7, 1 << 60), HEADER.pack(7, 0), b"HTTP/1.1 400 Bad"],
    ids=["another piece", "too long", "not lent", "garbage"],
)  # fmt: skip
@pytest.mark.parametrize("read", [Arrival.read, summed], ids=["read", "summed up"])
async def test_whatever_else_comes_than_the_piece_cuts_the_stream(
    answer: bytes, read: Read
) -> None:
    ours, theirs = pair()
    connection, memory = DataConnection(ours, "tcp from here"), memoryview(bytearray(64))
    broken: list[TransferCut] = []
    connection.begin(broken.append)
    arrival = connection.expect(Ticket(7, NO_SECRET, 64), 1)
    theirs.sendall(answer)

    with pytest.raises(TransferCut, match="asked for piece 7 of 64 bytes"):
        await asyncio.to_thread(read, arrival, [memory])

    await until(lambda: broken)
    assert not any(memory)
    assert not connection.is_fresh
    theirs.close()


@pytest.mark.parametrize("read", [Arrival.read, summed], ids=["read", "summed up"])
async def test_a_dripping_sender_is_cut(monkeypatch: pytest.MonkeyPatch, read: Read) -> None:
    monkeypatch.setattr(connections, "SLICE_S", 0.02)
    monkeypatch.setattr(connections, "seconds_for", lambda num_bytes: 0.1)
    ours, theirs = pair()
    connection, memory = DataConnection(ours, "tcp from here"), memoryview(bytearray(1 << 20))
    arrival = connection.expect(Ticket(7, NO_SECRET, 1 << 20), 1)
    theirs.sendall(HEADER.pack(7, 1 << 20))

    async def drip() -> None:
        while True:
            theirs.send(b"\1")
            await asyncio.sleep(0.01)

    dripping = asyncio.create_task(drip())
    with pytest.raises(TransferCut, match="not there in time"):
        async with asyncio.timeout(60):
            await asyncio.to_thread(read, arrival, [memory])
    dripping.cancel()
    theirs.close()


async def test_a_connection_cut_within_a_piece_costs_that_piece(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuts = [ServedConnection._send]

    def send(self: ServedConnection, parts: list[memoryview], loans: Sent, num_bytes: int) -> bool:
        if len(cuts) < 3:
            cuts.append(cuts[0])
            parts = [parts[0], parts[1][:7]]
            cuts[0](self, parts, loans, num_bytes)
            return False
        return cuts[0](self, parts, loans, num_bytes)

    monkeypatch.setattr(ServedConnection, "_send", send)
    monkeypatch.setattr(serving, "can_send", lambda: False)
    async with connected("tcp") as it:
        reservation = await it.grant()
        await it.compute()

        report = await it.fetch(reservation)

        assert report.num_reopened == 2
        assert it.decode.receiver.counters.num_bytes == KV_BYTES
        await it.on_d.call(it.decode.adopt)
        assert it.decode.holds_kv()
        await it.assert_nothing_is_left()


@pytest.mark.parametrize("is_compiled", [True, False])
async def test_blocks_of_a_lease_that_ends_while_its_sender_stalls_are_free_at_once(
    monkeypatch: pytest.MonkeyPatch, is_compiled: bool
) -> None:
    is_over, send = threading.Event(), ServedConnection._send

    def stall(self: ServedConnection, parts: list[memoryview], loans: Sent, num_bytes: int) -> bool:
        send(self, [parts[0], parts[1][:7]], deque(), num_bytes)
        is_over.wait(300)
        return False

    monkeypatch.setattr(ServedConnection, "_send", stall)
    monkeypatch.setattr(serving, "can_send", lambda: False)
    monkeypatch.setattr(connections, "seconds_for", lambda num_bytes: 3600.0)
    if not is_compiled:  # else nothing of a piece is in its blocks before a MiB of it has come
        monkeypatch.setattr(connections, "can_receive", lambda unit_bytes: False)
    async with connected("tcp") as it:
        fetching = asyncio.create_task(it.fetch(await it.grant()))
        await it.compute()
        await until(lambda: it.decode.receiver.state(TRANSFER) is ReceiverState.FILLING)

        await it.on_d.call(lambda: it.decode.receiver.expire(it.decode.clock() + 61))

        with pytest.raises(TransferAborted, match="its time is up"):
            async with asyncio.timeout(60):
                await fetching
        await until(lambda: it.decode.receiver.num_leased_blocks == 0)
        assert not any(plane.any() for plane in it.decode.cache.planes)
        is_over.set()
        await it.assert_nothing_is_left()


async def test_a_stream_that_is_given_up_while_it_ends_leaves_nothing() -> None:
    async with sharing(PreparedSide(4, is_endless=True)) as (it, half, transport):
        opened = transport.open(it.address, it.request)
        await anext(opened)  # and may still be read

        ending = asyncio.create_task(opened.aclose())
        await asyncio.sleep(0.05)
        ending.cancel()

        await asyncio.gather(ending, return_exceptions=True)
        await until(lambda: not half._served)
        await it.side.all_back()
