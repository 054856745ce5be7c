"""Clients that hold a connection without asking for anything, or ask as slowly as they can."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send
from tests.gateway.scripted import MODEL, Script, Serving, serving, soon

from baton.core.metrics import Counter
from baton.gateway.access.config import GatewayConfig
from baton.gateway.access.connections import Connections
from baton.gateway.http.port import timeout_protocol
from baton.gateway.http.port.server import HttpServer, bind
from baton.gateway.storage.config import StorageConfig

SHORT: dict[str, Any] = {
    "header_timeout_s": 0.2,
    "body_timeout_s": 0.2,
    "min_body_bytes_per_s": 100_000,
}
BRIEF = SHORT | {"header_timeout_s": 1.0, "body_timeout_s": 1.0}
"""For who keeps to the limits, also where the loop stands still for a while."""
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n"
UNREAD = b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n"
UPLOAD = (
    b"POST /v1/files HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n"
    b"Content-Type: multipart/form-data; boundary=b\r\n\r\n"
    b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n'
)
CHUNKED = b"GET /health HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


async def drip(writer: asyncio.StreamWriter, drop: bytes) -> None:
    with suppress(ConnectionError):
        while True:
            writer.write(drop)
            await writer.drain()
            await asyncio.sleep(0.05)


@asynccontextmanager
async def dripping(port: int, first: bytes, drop: bytes) -> AsyncIterator[asyncio.StreamReader]:
    """A connection on which `first` is sent, and then `drop` again and again."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(first)
    dripper = asyncio.create_task(drip(writer, drop))
    try:
        async with asyncio.timeout(60):
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
        pytest.param(POST, b"", [408], id="a body that never begins"),
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


@pytest.mark.parametrize(
    ("first", "status"),
    [
        pytest.param(POST, b"408", id="a late body"),
        pytest.param(HEALTH[:-2], b"408", id="late headers"),
        pytest.param(POST.replace(b"5000", b"99999999"), b"413", id="a large body"),
    ],
)
async def test_a_client_that_still_sends_can_read_why_it_is_cut_off(
    first: bytes, status: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A socket that is closed while data comes sends a reset, at which clients drop the answer."""
    monkeypatch.setattr(timeout_protocol, "LINGER_S", 280.0)
    async with serving(max_body_bytes=10_000, **SHORT) as gateway, asyncio.timeout(120):
        with socket.create_connection(("127.0.0.1", gateway.server.http_port)) as client:
            client.sendall(first)
            answer = b""
            while more := await asyncio.to_thread(client.recv, 1 << 16):
                answer += more
            for _ in range(3):
                client.sendall(b"y" * 1000)  # a reset makes the next one fail
                await asyncio.sleep(0.01)

    assert answer.startswith(b"HTTP/1.1 " + status) and b"connection: close" in answer
    assert answer.endswith(b"}}")


async def test_a_client_that_does_not_close_is_not_waited_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timeout_protocol, "LINGER_S", 0.05)
    async with serving(**SHORT) as gateway, asyncio.timeout(120):
        with socket.create_connection(("127.0.0.1", gateway.server.http_port)) as client:
            client.sendall(POST)
            with pytest.raises(ConnectionError):
                while True:
                    client.sendall(b"y")
                    await asyncio.sleep(0.01)


async def test_a_file_that_drips_is_cut_off_and_none_of_it_is_kept(tmp_path: Path) -> None:
    storage = StorageConfig(folder=str(tmp_path))
    async with (
        serving(storage=storage, **SHORT) as gateway,
        dripping(gateway.server.http_port, UPLOAD, b" ") as reader,
    ):
        answer = await until_closed(reader)
        kept = (await gateway.http.get("/v1/files")).json()["data"]

    assert answer.startswith(b"HTTP/1.1 408")
    assert kept == []
    assert not [
        path for path in tmp_path.rglob("*") if path.is_file() and b" " in path.read_bytes()
    ]


async def test_a_later_request_on_a_kept_connection_has_the_same_time() -> None:
    async with serving(**BRIEF) as gateway:
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
    async with serving(Script(stalls_after=0), request_timeout_s=1.2, **BRIEF) as gateway:
        answer = await gateway.complete(prompt="Hello")

    assert answer.status_code == 504


async def test_a_pause_between_requests_may_take_longer_than_headers() -> None:
    async with serving(**BRIEF) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.server.http_port)
        for _ in range(2):
            writer.write(HEALTH)
            assert (await reader.readuntil(b'"ok"}')).startswith(b"HTTP/1.1 200")
            await asyncio.sleep(1.2)
        writer.close()


async def test_a_connection_is_kept_between_requests_for_so_long() -> None:
    """Were both kept for uvicorn's own five seconds, the first to ask would be the first to go."""
    async with serving(keep_alive_s=600) as lasting, serving(keep_alive_s=1) as brief:
        ports = [gateway.server.http_port for gateway in (lasting, brief)]
        kept, closed = [await asyncio.open_connection("127.0.0.1", port) for port in ports]
        for reader, writer in (kept, closed):
            writer.write(HEALTH)
            await reader.readuntil(b'"ok"}')

        assert await until_closed(closed[0]) == b""
        kept[1].write(HEALTH)
        assert await kept[0].readuntil(b'"ok"}')
        for _, writer in (kept, closed):
            writer.close()


async def test_the_rest_of_a_body_nobody_has_read_leaves_the_connection_to_the_next_request() -> (
    None
):
    async with serving(**BRIEF) as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.server.http_port)
        writer.write(UNREAD)
        await reader.readuntil(b'"ok"}')
        writer.write(b"y" * 5000)
        await asyncio.sleep(1.2)  # longer than any of the limits
        writer.write(HEALTH)

        assert (await reader.readuntil(b'"ok"}')).startswith(b"HTTP/1.1 200")
        writer.close()


def test_a_body_earns_time_by_coming_and_never_more_than_a_request_has() -> None:
    config = GatewayConfig(body_timeout_s=20, min_body_bytes_per_s=1000, request_timeout_s=60)

    limits = [config.body_limit_s(num_bytes) for num_bytes in (0, 1000, 30_000, 10**9)]

    assert limits == [20, 21, 50, 60]


def refused(gateway: Serving, reason: str) -> str:
    """How often, as the metrics say."""
    line = f'refused_connections_total{{model="{MODEL}",reason="{reason}"}} '
    _, _, rest = gateway.server.metrics_page().partition(line)
    return rest.partition("\n")[0]


@pytest.mark.parametrize(
    ("first", "drop"),
    [
        pytest.param(b"0\r\n", b"a: b\r\n" * 30, id="fields behind the body"),
        pytest.param(b"0\r\na: ", b"y" * 9000, id="one of them without end"),
        pytest.param(b"5;a=", b"y" * 9000, id="the size of a chunk"),
    ],
)
async def test_what_stands_beside_a_body_in_chunks_has_the_limits_of_headers(
    first: bytes, drop: bytes
) -> None:
    async with (
        serving() as gateway,
        dripping(gateway.server.http_port, CHUNKED + first, drop) as reader,
    ):
        answer = await until_closed(reader)
        num_refused = refused(gateway, "large headers")

    assert answer.count(b"HTTP/1.1 ") == 1  # it was answered, and no other answer stands behind it
    assert num_refused == "1"


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("max_connections", "too many connections"),
        ("max_connections_per_address", "too many connections of one address"),
    ],
)
async def test_one_connection_too_many_is_told_so_and_one_that_leaves_makes_room(
    setting: str, reason: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    few: dict[str, Any] = {setting: 2}
    has_left, close = asyncio.Event(), Connections.close

    def leave(self: Connections, address: str) -> None:
        close(self, address)
        has_left.set()

    monkeypatch.setattr(Connections, "close", leave)
    async with serving(**few) as gateway, asyncio.timeout(120):
        port = gateway.server.http_port
        kept = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        for reader, writer in kept:
            writer.write(HEALTH)
            await reader.readuntil(b'"ok"}')
        answers = []
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            answers.append(await until_closed(reader))
            writer.close()
        kept[0][1].close()
        await soon(has_left)  # as the gateway sees it
        status = (await gateway.http.get("/health")).status_code
        kept[1][1].close()
        num_refused = refused(gateway, reason)

    assert all(answer.startswith(b"HTTP/1.1 503") for answer in answers)
    assert status == 200
    assert num_refused == "3"
    assert [r.getMessage() for r in caplog.records if reason in r.getMessage()] == [
        f"a connection from 127.0.0.1 was ended: {reason}"
    ]


CHUNK = b"x" * 65_536
LARGE = 160
"""Chunks: far more than the system takes over for one that does not read."""


@dataclass
class Endless:
    """An application that answers with `LARGE` chunks, streamed or at once."""

    is_streamed: bool
    num_sent: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if not self.is_streamed:
            await send({"type": "http.response.body", "body": CHUNK * LARGE})
            return
        for _ in range(LARGE):
            await send({"type": "http.response.body", "body": CHUNK, "more_body": True})
            self.num_sent += 1
        await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def answered_by(
    app: ASGIApp, unread_timeout_s: float = 0.1
) -> AsyncIterator[tuple[socket.socket, Counter]]:
    """A client that has asked and has little room, and what is refused."""
    refused = Counter("refused", "", ("reason",))
    config = GatewayConfig(unread_timeout_s=unread_timeout_s)
    server = HttpServer(app, config, Connections(max_open=9, refused=refused))
    await server.start(bind("127.0.0.1", 0))
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, ("127.0.0.1", server.port))
        await loop.sock_sendall(client, HEALTH)
        try:
            async with asyncio.timeout(120):
                yield client, refused
        finally:
            await server.stop(0)


@pytest.mark.parametrize("is_streamed", [True, False])
async def test_who_does_not_read_is_cut_off(is_streamed: bool) -> None:
    app = Endless(is_streamed)
    async with answered_by(app) as (_, refused):
        num_sent = 0
        while not refused.family().samples:
            num_sent = app.num_sent
            await asyncio.sleep(0.02)

    assert [one.labels["reason"] for one in refused.family().samples] == ["unread answer"]
    assert num_sent < LARGE


async def test_who_reads_slowly_gets_all_of_it() -> None:
    num_bytes = 0
    # Less than it takes, and far more than it takes for a part.
    async with answered_by(Endless(is_streamed=False), unread_timeout_s=1.0) as (client, refused):
        while num_bytes < LARGE * len(CHUNK):
            part = await asyncio.get_running_loop().sock_recv(client, 1 << 20)
            assert part
            num_bytes += len(part)
            if num_bytes < 4 * len(CHUNK):
                await asyncio.sleep(0.02)

    assert refused.family().samples == []


async def test_requests_are_not_heaped_up_on_one_connection() -> None:
    async with serving() as gateway, asyncio.timeout(120):
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.server.http_port)
        writer.write(HEALTH * 1000)
        answer = await until_closed(reader)
        writer.close()

        assert answer.count(b"HTTP/1.1 200") < 100
        assert refused(gateway, "too many requests at once") == "1"
