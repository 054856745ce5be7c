"""Raw TCP's connections: who is let in, how long one is kept, and where it listens."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import msgspec
import pytest
from tests.kv_transfer.replicas import LAYOUT
from tests.kv_transfer.transport.control_ends import (
    RECEIVER,
)
from tests.kv_transfer.transport.tcp.sharing import bytes_of, sharing, until

from baton.core.errors import TransportFailed
from baton.core.wire_security import WireSecurity
from baton.kv_transfer.transport.tcp import pool, tcp
from baton.kv_transfer.transport.tcp.frames import WELCOME, hello_of
from baton.kv_transfer.transport.tcp.pool import MeetReply, MeetRequest
from baton.kv_transfer.transport.tcp.tcp import TcpSending, TcpTransport

REQUEST = msgspec.msgpack.encode(MeetRequest("127.0.0.1"))


async def visit(port: int, words: bytes) -> bytes:
    """What is answered until the connection is closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(words)
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


async def test_streams_in_turn_use_one_connection_and_it_is_closed_when_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with sharing() as (it, half, transport):
        expected = [bytes([number]) * LAYOUT.layer_block_bytes for number in range(40)]

        for _ in range(3):  # between two streams it may idle for long
            assert await bytes_of(it, transport) == expected
            assert (len(half._served), transport._pool.num_idle) == (1, 1)
        [connection] = half._served

        monkeypatch.setattr(pool, "IDLE_S", 0.05)
        assert await bytes_of(it, transport) == expected
        assert half._served <= {connection}
        await it.side.all_back()
        await until(lambda: not half._served)
        assert transport._pool.num_idle == 0
        assert await bytes_of(it, transport) == expected  # by a new one


async def test_a_name_with_addresses_of_both_families_is_reached_where_it_is_listened_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with sharing() as (it, _, transport):
        loop = asyncio.get_running_loop()
        resolve = loop.getaddrinfo

        async def both(host: str, port: int, *, family: int = 0, **options: Any) -> list[Any]:
            newer = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", port, 0, 0))
            older = await resolve(host, port, family=socket.AF_INET, **options)
            return [each for each in (newer, *older) if family in (0, each[0])]

        monkeypatch.setattr(loop, "getaddrinfo", both)

        assert len(await bytes_of(it, transport)) == 40


async def test_strangers_are_shown_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "HELLO_TIMEOUT_S", 0.05)
    async with sharing() as (it, half, transport):
        listener = msgspec.msgpack.decode(await half.meet(RECEIVER, REQUEST), type=MeetReply)
        another = TcpSending()
        theirs = msgspec.msgpack.decode(await another.meet(RECEIVER, REQUEST), type=MeetReply)
        hello = hello_of(RECEIVER, listener.admission)

        async with asyncio.timeout(60):
            answers = await asyncio.gather(
                visit(listener.port, b""),  # silent
                visit(listener.port, hello[:-1]),  # halting
                visit(listener.port, b"GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n" * 9),
                visit(listener.port, hello_of(RECEIVER, theirs.admission)),
                visit(listener.port, hello_of(it.side.epoch, listener.admission)),
                visit(listener.port, b"\0" + hello[1:]),
            )

        assert list(answers) == [b""] * 6
        assert not half._served
        monkeypatch.undo()  # who is no stranger may be slow
        assert len(await bytes_of(it, transport)) == 40
        await another.close()


async def test_only_so_many_strangers_are_listened_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "MAX_STRANGERS", 2)
    monkeypatch.setattr(tcp, "HELLO_TIMEOUT_S", 3600.0)
    async with sharing() as (it, half, transport):
        listener = msgspec.msgpack.decode(await half.meet(RECEIVER, REQUEST), type=MeetReply)
        silent = [await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(2)]
        await until(lambda: len(half._strangers) == 2)

        assert len(await bytes_of(it, transport)) == 40  # the silent ones make room
        async with asyncio.timeout(60):
            assert await silent[0][0].read() == b""

        for _, writer in silent:
            writer.close()


@pytest.mark.parametrize("host", ["", "0", "::", "a\0b"])
async def test_it_listens_only_at_an_address_of_its_own(host: str) -> None:
    half = TcpSending()

    with pytest.raises(TransportFailed, match="cannot listen at"):
        await half.meet(RECEIVER, msgspec.msgpack.encode(MeetRequest(host)))

    assert not half._listeners


async def test_who_cannot_be_served_is_shown_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async with sharing() as (_, half, _transport):
        listener = msgspec.msgpack.decode(await half.meet(RECEIVER, REQUEST), type=MeetReply)
        unraised: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: unraised.append(what))
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", start)
            assert await visit(listener.port, hello_of(RECEIVER, listener.admission)) == WELCOME

        await until(lambda: not half._strangers)
        assert not half._served
        assert not unraised


async def test_an_idle_connection_makes_room_for_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "MAX_SERVED", 1)
    async with sharing() as (it, half, transport):
        other = TcpTransport(it.client)

        for each in (transport, other, transport, other):
            # The sender's thread has yet to see that it is idle when its last byte has come.
            await until(lambda: all(served.idle_since is not None for served in half._served))
            assert len(await bytes_of(it, each)) == 40
            assert len(half._served) == 1

        await other.close()


async def test_where_tls_is_asked_for_nobody_is_let_in() -> None:
    half = TcpSending(WireSecurity(certificate_pem=b"-----BEGIN CERTIFICATE-----"))

    with pytest.raises(TransportFailed, match=r"does not encrypt.*auto or grpc"):
        await half.meet(RECEIVER, REQUEST)

    assert not half._listeners
