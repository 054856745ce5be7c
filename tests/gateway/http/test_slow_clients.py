"""Clients that hold a connection without asking for anything, or ask as slowly as they can."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from tests.gateway.scripted import Script, serving

from baton.gateway.access.config import GatewayConfig
from baton.gateway.http.request_body import time_limit_s

SHORT: dict[str, Any] = {
    "header_timeout_s": 0.2,
    "body_timeout_s": 0.2,
    "min_body_bytes_per_s": 100_000,
}
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n"
UNREAD = b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n"


async def drip(writer: asyncio.StreamWriter, drop: bytes) -> None:
    with suppress(ConnectionError):
        while True:
            writer.write(drop)
            await writer.drain()
            await asyncio.sleep(0.01)


@asynccontextmanager
async def dripping(port: int, first: bytes, drop: bytes) -> AsyncIterator[asyncio.StreamReader]:
    """A connection on which `first` is sent, and then `drop` again and again."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(first)
    dripper = asyncio.create_task(drip(writer, drop))
    try:
        async with asyncio.timeout(20):
            yield reader
    finally:
        dripper.cancel()
        await asyncio.gather(dripper, return_exceptions=True)
        writer.close()


async def until_closed(reader: asyncio.StreamReader) -> bytes:
    """What came before. A close while more of ours is on its way is a reset."""
    answer = b""
    with suppress(ConnectionError):
        while more := await reader.read(1 << 16):
            answer += more
    return answer


@pytest.mark.parametrize(
    ("first", "drop", "statuses"),
    [
        pytest.param(b"GET /health HTTP/1.1\r\nx: ", b"y", [408], id="a header without end"),
        pytest.param(b"", b"\r\n", [408], id="blank lines"),
        pytest.param(HEALTH + b"GET /", b"x", [200, 408], id="a second request in the same packet"),
        pytest.param(UNREAD, b"y", [200], id="a body that nobody reads"),
        pytest.param(POST, b" ", [408], id="a body below the rate"),
    ],
)
async def test_a_client_that_drips_is_cut_off(
    first: bytes, drop: bytes, statuses: list[int]
) -> None:
    async with (
        serving(**SHORT) as gateway,
        dripping(gateway.server.http_port, first, drop) as reader,
    ):
        answer = await until_closed(reader)

    told = [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]
    assert told[: len(statuses)] == statuses
    if 408 in told:
        assert b"connection: close" in answer
        assert b'"request_timeout"' in answer


async def test_a_later_request_on_a_kept_connection_has_the_same_time() -> None:
    async with serving(**SHORT) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.server.http_port)
        writer.write(HEALTH)
        assert (await reader.readuntil(b'"ok"}')).startswith(b"HTTP/1.1 200")
        writer.write(HEALTH[:-5])

        answer = await until_closed(reader)
        writer.close()

    assert answer.startswith(b"HTTP/1.1 408")


async def test_a_connection_on_which_nothing_comes_is_closed_without_a_word() -> None:
    async with serving(**SHORT) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.server.http_port)
        assert await until_closed(reader) == b""
        writer.close()


async def test_an_answer_may_take_longer_than_headers() -> None:
    async with serving(Script(stalls_after=0), request_timeout_s=0.3, **SHORT) as gateway:
        answer = await gateway.complete(prompt="Hello")

    assert answer.status_code == 504


async def test_a_pause_between_requests_may_take_longer_than_headers() -> None:
    async with serving(**SHORT) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.server.http_port)
        for _ in range(2):
            writer.write(HEALTH)
            assert (await reader.readuntil(b'"ok"}')).startswith(b"HTTP/1.1 200")
            await asyncio.sleep(0.3)
        writer.close()


async def test_a_connection_is_kept_between_requests_for_so_long() -> None:
    async with serving(keep_alive_s=1, **SHORT) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.server.http_port)
        writer.write(HEALTH)
        await reader.readuntil(b'"ok"}')
        async with asyncio.timeout(4):  # uvicorn's own is five
            assert await until_closed(reader) == b""
        writer.close()


async def test_the_rest_of_a_body_nobody_has_read_leaves_the_connection_to_the_next_request() -> (
    None
):
    async with serving(**SHORT) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.server.http_port)
        writer.write(UNREAD)
        await reader.readuntil(b'"ok"}')
        writer.write(b"y" * 5000)
        await asyncio.sleep(0.3)  # longer than any of the limits
        writer.write(HEALTH)

        assert (await reader.readuntil(b'"ok"}')).startswith(b"HTTP/1.1 200")
        writer.close()


def test_a_body_earns_time_by_coming_and_never_more_than_a_request_has() -> None:
    config = GatewayConfig(body_timeout_s=20, min_body_bytes_per_s=1000, request_timeout_s=60)

    limits = [time_limit_s(config, num_bytes) for num_bytes in (0, 1000, 30_000, 10**9)]

    assert limits == [20, 21, 50, 60]
