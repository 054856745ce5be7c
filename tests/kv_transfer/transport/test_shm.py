"""Shared memory: who gets to read a sender's arena, which parts of it, and for how long."""

from __future__ import annotations

import asyncio
import gc
import mmap
import os
import socket
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from tests.kv_transfer.replicas import LAYOUT, PrefillReplica, opening
from tests.kv_transfer.transport.control_ends import (
    RECEIVER,
    ControlEnds,
    PreparedSide,
    control_ends,
)
from tests.kv_transfer.world import connected

from baton.core.errors import StaleEpoch, TransferCut, TransportFailed
from baton.core.ids import new_epoch
from baton.core.kv_arena import KvArena
from baton.kv_transfer.handoff.messages import OpenTransfer
from baton.kv_transfer.handoff.transport import LentPiece, PackedPiece
from baton.kv_transfer.transport import shm
from baton.kv_transfer.transport.block_tickets import BlockTicket
from baton.kv_transfer.transport.shm import ShmSending, ShmTransport, _MeetRequest
from baton.kv_transfer.transport.shm_arena import ShmArena

CACHE = PrefillReplica(num_blocks=64).cache
ARENA = CACHE.arena
REQUEST = msgspec.msgpack.encode(_MeetRequest(shm.this_host()))


class Forging(ShmSending):
    """Sends another ticket than it should."""

    ticket = b""

    async def pack(self, piece: LentPiece, request: OpenTransfer) -> PackedPiece:
        return PackedPiece(ticket=self.ticket)


@asynccontextmanager
async def sharing(
    arena: KvArena = ARENA, half: ShmSending | None = None, side: PreparedSide | None = None
) -> AsyncIterator[tuple[ControlEnds, ShmSending, ShmTransport]]:
    half = half or ShmSending(arena)
    async with control_ends(side or PreparedSide(40), shm=half) as it:
        transport = ShmTransport(it.client)
        try:
            yield it, half, transport
        finally:
            await transport.close()
            await half.close()


async def read_all(it: ControlEnds, transport: ShmTransport) -> int:
    num_pieces = 0
    async with aclosing(transport.open(it.address, it.request)) as pieces:
        async for piece in pieces:
            num_pieces += 1
            piece.release()
    return num_pieces


def num_maps() -> int:
    """Arenas of others mapped into this process: to read, where our own are writable."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return sum("memfd:baton-kv" in line and " r--s " in line for line in maps)


def num_maps_at_first() -> int:
    """Without those that earlier tests left in cycles, which might go at any moment."""
    gc.collect()
    return num_maps()


async def test_a_receiver_cannot_write_what_it_maps() -> None:
    async with connected("shm") as it:
        await it.grant()
        await it.compute()
        request = opening(it.prefill, it.decode)

        async with aclosing(it.transport.open(it.address, request)) as pieces:
            piece = await anext(pieces)

            assert all(view.readonly for view in piece.views)
            piece.release()
    fd = it.prefill.cache.arena.fd
    assert fd is not None
    with pytest.raises(PermissionError):
        mmap.mmap(fd, 4096, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    with pytest.raises(PermissionError):
        os.write(fd, b"x")
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 0)


async def test_an_arena_is_mapped_once_for_all_transfers_of_an_incarnation() -> None:
    async with sharing() as (it, _, transport):
        before = num_maps_at_first()

        for _ in range(3):
            assert await read_all(it, transport) == 40
        assert num_maps() == before + 1

        await transport.close()
        assert num_maps() == before


async def test_two_first_transfers_at_once_map_it_once() -> None:
    async with sharing() as (it, _, transport):
        before = num_maps_at_first()

        assert await asyncio.gather(*(read_all(it, transport) for _ in range(4))) == [40] * 4

        assert num_maps() == before + 1


async def test_a_receiver_lets_go_of_the_memory_of_a_sender_that_is_gone() -> None:
    async with sharing() as (it, half, transport):
        before = num_maps_at_first()
        await read_all(it, transport)

        await half.close()

        async with asyncio.timeout(60):
            while num_maps() > before:
                await asyncio.sleep(0.001)


async def test_views_of_pieces_in_flight_outlive_the_map() -> None:
    async with sharing() as (it, half, transport):
        before = num_maps_at_first()
        pieces = transport.open(it.address, it.request)
        piece = await anext(pieces)

        await transport.close()
        await half.close()

        assert bytes(piece.views[0]) == bytes(LAYOUT.layer_block_bytes)
        await pieces.aclose()
        del piece, pieces
        assert num_maps() == before


async def test_a_new_incarnation_at_an_address_takes_the_place_of_the_old_one() -> None:
    async with connected("shm") as it:
        before = num_maps_at_first()
        await it.grant()
        await it.compute()
        request = opening(it.prefill, it.decode)
        async with aclosing(it.transport.open(it.address, request)) as pieces:
            (await anext(pieces)).release()

        with pytest.raises(StaleEpoch):  # whoever is there now is met anew
            stranger = replace(request, sender_epoch=new_epoch())
            await anext(it.transport.open(it.address, stranger))

        assert num_maps() == before + 1


async def test_only_so_many_senders_stay_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shm, "MAX_MAPS", 1)
    async with sharing() as (first, _, transport), sharing() as (second, _, _):
        before = num_maps_at_first()

        await read_all(first, transport)
        await read_all(second, transport)
        await read_all(first, transport)

        assert num_maps() == before + 1


async def test_replicas_on_different_hosts_hear_so_at_once() -> None:
    async with sharing() as (_, half, _):
        elsewhere = msgspec.msgpack.encode(_MeetRequest("another boot/another network"))

        with pytest.raises(TransportFailed, match="share no host"):
            await half.meet(RECEIVER, elsewhere)
        with pytest.raises(TransportFailed, match="cannot be read"):
            await half.meet(RECEIVER, b"\xff not msgpack")


async def test_memory_that_is_no_file_is_not_shared() -> None:
    on_gpu = replace(ARENA, fd=None, device="cuda:0")
    async with sharing(on_gpu) as (it, _, transport):
        with pytest.raises(TransportFailed, match="cuda:0"):
            await read_all(it, transport)


async def visit(answer: ShmArena, nonce: bytes) -> list[int]:
    """What files the socket gives for this nonce."""
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.setblocking(False)
        await loop.sock_connect(connection, f"\0{answer.socket}")
        await loop.sock_sendall(connection, nonce)
        await shm._readable(connection)
        try:
            return socket.recv_fds(connection, 1, 1)[1]
        except ConnectionResetError:  # thrown out before our nonce was read
            return []


async def test_a_nonce_opens_the_door_once() -> None:
    async with sharing() as (_, half, _):
        answer = msgspec.msgpack.decode(await half.meet(RECEIVER, REQUEST), type=ShmArena)

        files = await visit(answer, answer.nonce)

        assert len(files) == 1
        os.close(files[0])
        assert await visit(answer, answer.nonce) == []
        assert await visit(answer, bytes(16)) == []


async def test_another_user_is_given_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with sharing() as (_, half, _):
        answer = msgspec.msgpack.decode(await half.meet(RECEIVER, REQUEST), type=ShmArena)
        monkeypatch.setattr(os, "getuid", lambda: 12345)  # of the sender: we are another user

        assert await visit(answer, answer.nonce) == []


async def test_a_file_of_another_size_or_without_a_seal_is_refused() -> None:
    unsealed = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    os.ftruncate(unsealed, os.fstat(ARENA.fd or 0).st_size)
    for arena in (replace(ARENA, num_blocks=63), replace(ARENA, fd=unsealed)):
        async with sharing(arena) as (it, _, transport):
            with pytest.raises(TransportFailed, match="not a sealed file of the size"):
                await read_all(it, transport)
    os.close(unsealed)


@pytest.mark.parametrize(
    "ticket",
    [b"abc", BlockTicket(0, LAYOUT.layer_block_bytes, [64]).pack()],
    ids=["short", "beyond"],
)
async def test_a_ticket_for_anything_but_blocks_of_the_arena_is_refused(ticket: bytes) -> None:
    half = Forging(ARENA)
    half.ticket = ticket
    async with sharing(half=half) as (it, _, transport):
        with pytest.raises(TransferCut, match="ticket"):
            await read_all(it, transport)

        await it.side.all_back()


async def test_some_heads_of_a_block_are_read_where_they_are() -> None:
    half = Forging(ARENA)
    half.ticket = BlockTicket(LAYOUT.unit_bytes, LAYOUT.unit_bytes, [5]).pack()
    ARENA.planes[0][5, 1] = 7.0
    async with sharing(half=half) as (it, _, transport):
        pieces = transport.open(it.address, it.request)

        piece = await anext(pieces)

        assert memoryview(piece.views[0]).cast("f").tolist() == [7.0] * (LAYOUT.unit_bytes // 4)
        await pieces.aclose()
