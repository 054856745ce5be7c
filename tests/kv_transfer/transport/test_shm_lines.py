"""Control streams over the socket of a sender on the same machine, beside those over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from tests.kv_transfer.transport.control_ends import RECEIVER, PreparedSide, control_ends
from tests.kv_transfer.transport.test_shm import ARENA, REQUEST, read_all, sharing

from baton.core.errors import (
    LayoutMismatch,
    StaleEpoch,
    TransferAborted,
    TransferCut,
    TransferError,
    UnknownTransfer,
)
from baton.core.ids import TransferId
from baton.kv_transfer.transport.control import socket_lines
from baton.kv_transfer.transport.control.servicer import KvTransferServicer
from baton.kv_transfer.transport.local_sockets import new_socket, visit
from baton.kv_transfer.transport.shm import ShmSending, ShmTransport
from baton.kv_transfer.transport.shm_arena import ShmArena

LINE, GRPC = "a line", "gRPC"
LIMIT_S = 60.0


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The way of each stream that P has seen begin."""
    ways: list[str] = []
    serve: Any = KvTransferServicer.Open

    async def noting(
        self: KvTransferServicer, messages: AsyncIterator[Any], context: Any
    ) -> AsyncIterator[bytes]:
        ways.append(LINE if isinstance(context, socket_lines._Context) else GRPC)
        async with aclosing(serve(self, messages, context)) as served:
            async for message in served:
                yield message

    monkeypatch.setattr(KvTransferServicer, "Open", noting)
    return ways


async def test_transfers_that_follow_each_other_share_a_line(begun: list[str]) -> None:
    async with sharing() as (it, _, transport), asyncio.timeout(LIMIT_S):
        for _ in range(3):
            assert await read_all(it, transport) == 40
            while not it.client.num_idle_streams:  # P hears that all is taken
                await asyncio.sleep(0.001)

        await it.side.all_back()
        assert (begun, it.side.num_lent) == ([LINE], 120)


@pytest.mark.parametrize(
    "kind", [StaleEpoch, UnknownTransfer, TransferAborted, LayoutMismatch, TransferCut]
)
async def test_an_error_crosses_a_line_as_what_it_is(
    kind: type[TransferError], begun: list[str]
) -> None:
    side = PreparedSide(0, error=kind("the sender says why"))
    async with sharing(side=side) as (it, _, transport):
        with pytest.raises(TransferError, match="the sender says why") as raised:
            await read_all(it, transport)

        assert (type(raised.value), begun) == (kind, [LINE])


async def test_a_receiver_that_hangs_up_is_served_no_more() -> None:
    async with sharing(side=PreparedSide(3, is_endless=True)) as (it, _, transport):
        pieces = transport.open(it.address, it.request)
        await anext(pieces)
        assert it.side.num_open == 1

        await transport.close()  # the line, and nothing is said on it

        await it.side.all_back()
        with pytest.raises(TransferCut):
            async for piece in pieces:
                piece.release()


async def test_a_sender_that_closes_cuts_its_lines() -> None:
    async with sharing(side=PreparedSide(3, is_endless=True)) as (it, half, transport):
        async with asyncio.timeout(LIMIT_S):
            with pytest.raises(TransferCut, match="closed the line"):
                async with aclosing(transport.open(it.address, it.request)) as pieces:
                    async for piece in pieces:
                        piece.release()
                        await half.close()

        await it.side.all_back()


@pytest.mark.parametrize(
    ("is_welcome", "said"),
    [
        (False, b""),
        (True, b"\xff" * 64),
        (True, socket_lines._frame(socket_lines._STATUS, b"")),
        (True, socket_lines._frame(socket_lines._MESSAGE, b"\xff")),
        (True, socket_lines._FRAME.pack(socket_lines._MESSAGE, socket_lines.MAX_FRAME_BYTES + 1)),
    ],
    ids=["a stranger", "noise", "a status", "no message", "too long"],
)
async def test_who_says_what_nobody_understands_is_hung_up_on(
    is_welcome: bool, said: bytes
) -> None:
    loop = asyncio.get_running_loop()
    async with sharing() as (it, half, transport), asyncio.timeout(LIMIT_S):
        answer = msgspec.msgpack.decode(await half.meet(RECEIVER, REQUEST), type=ShmArena)
        with new_socket() as line:
            await visit(line, answer.socket, answer.line_key if is_welcome else bytes(16))
            await loop.sock_sendall(line, said)
            while await loop.sock_recv(line, 1 << 16):
                pass

        assert it.side.num_lent == 0
        assert await read_all(it, transport) == 40


async def test_a_receiver_asks_by_grpc_where_no_line_is_to_be_had(begun: list[str]) -> None:
    async with sharing() as (it, half, transport):
        async with aclosing(transport.open(it.address, it.request)) as held:
            await anext(held)
            assert half._listening is not None
            half._listening.cancel()
            await asyncio.gather(half._listening, return_exceptions=True)

            other = replace(it.request, transfer_id=TransferId("kv-2"))
            async with aclosing(transport.open(it.address, other)) as pieces:
                num_pieces = 0
                async for piece in pieces:
                    piece.release()
                    num_pieces += 1

        assert (num_pieces, begun) == (40, [LINE, GRPC])


async def test_an_older_sender_is_asked_by_grpc(begun: list[str]) -> None:
    half = ShmSending(ARENA)
    async with control_ends(PreparedSide(40), shm=half) as it:
        half.open_stream, transport = None, ShmTransport(it.client)

        assert await read_all(it, transport) == 40

        assert begun == [GRPC]
        await transport.close()
        await half.close()
