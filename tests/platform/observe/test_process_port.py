"""The port of a process for probes and Prometheus, over HTTP."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any

import httpx
import pytest
from tests.free_ports import free_ports
from uvicorn.protocols.http import httptools_impl

from baton.platform.observe import process_port
from baton.platform.observe.listeners import bind_first_free, first_listening
from baton.platform.observe.process_port import ProcessPort

HOST = "127.0.0.1"


def asking(port: ProcessPort) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://{HOST}:{port.port}", timeout=60)


async def test_probes_are_answered_before_a_process_is_ready_and_when_it_is_not_well() -> None:
    port = ProcessPort()
    await port.start(HOST, 0)
    try:
        async with asking(port) as http:

            async def statuses() -> list[int]:
                pages = ("/healthz", "/readyz", "/metrics")
                return [(await http.get(page)).status_code for page in pages]

            loading = await statuses()
            port.pages.is_ready = lambda: True
            port.pages.metrics = lambda: "x 1\n"
            serving = await statuses()
            text = (await http.get("/metrics")).text
            port.pages.is_well = lambda: False
            ill = await statuses()
            others = [
                (await http.get("/debug/status")).status_code,
                (await http.post("/metrics")).status_code,
            ]
    finally:
        await port.stop()

    assert (loading, serving, ill) == ([200, 503, 200], [200, 200, 200], [503, 503, 200])
    assert text == "x 1\n"
    assert others == [404, 405]


async def test_those_who_say_nothing_do_not_keep_the_probes_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process_port, "MAX_CONNECTIONS", 2)
    monkeypatch.setattr(process_port, "CONNECTION_LIMIT_S", 0.1)
    port = ProcessPort()
    await port.start(HOST, 0)
    try:
        silent, writer = await asyncio.open_connection(HOST, port.port)
        halting, half_said = await asyncio.open_connection(HOST, port.port)
        half_said.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\nGET /healthz HT")
        async with asyncio.timeout(60):  # only keeps a failing test from hanging
            assert await silent.read() == b""
            await halting.read()
        monkeypatch.setattr(process_port, "CONNECTION_LIMIT_S", 600.0)
        async with asking(port) as http:
            answer = await http.get("/healthz")
        writer.close()
        half_said.close()
    finally:
        await port.stop()

    assert answer.status_code == 200


async def test_a_probe_takes_the_place_of_the_oldest_who_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(process_port, "MAX_CONNECTIONS", 2)
    monkeypatch.setattr(process_port, "CONNECTION_LIMIT_S", 600.0)
    port = ProcessPort()
    await port.start(HOST, 0)
    try:
        oldest, first = await asyncio.open_connection(HOST, port.port)
        _, second = await asyncio.open_connection(HOST, port.port)
        async with asking(port) as http:
            answer = await http.get("/healthz")
        async with asyncio.timeout(60):  # only keeps a failing test from hanging
            assert await oldest.read() == b""
        first.close()
        second.close()
    finally:
        await port.stop()

    assert answer.status_code == 200


async def test_a_connection_that_sends_much_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_port, "CONNECTION_LIMIT_S", 600.0)
    port = ProcessPort()
    await port.start(HOST, 0)
    try:
        reader, writer = await asyncio.open_connection(HOST, port.port)
        writer.write(b"GET /healthz HTTP/1.1\r\na: " + b"y" * 20_000)
        async with asyncio.timeout(60):  # a tenth of what each connection has
            with suppress(ConnectionError):
                assert await reader.read() == b""
        writer.close()
    finally:
        await port.stop()


async def test_a_connection_has_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    cycle, begun = httptools_impl.RequestResponseCycle, []

    def begin(**given: Any) -> httptools_impl.RequestResponseCycle:
        begun.append(given)
        return cycle(**given)

    monkeypatch.setattr(httptools_impl, "RequestResponseCycle", begin)
    monkeypatch.setattr(process_port, "CONNECTION_LIMIT_S", 600.0)
    port = ProcessPort()
    await port.start(HOST, 0)
    try:
        reader, writer = await asyncio.open_connection(HOST, port.port)
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n" * 100)
        async with asyncio.timeout(60):  # only keeps a failing test from hanging
            answer = await reader.read()
        writer.close()
    finally:
        await port.stop()

    assert answer.startswith(b"HTTP/1.1 200")
    assert len(begun) == 1


def test_processes_of_one_machine_take_one_port_after_the_other() -> None:
    number, following = free_ports(2)
    with bind_first_free(HOST, number) as first, bind_first_free(HOST, number) as second:
        assert [one.getsockname()[1] for one in (first, second)] == [number, following]
        first.close()
        assert first_listening(HOST, number) == following


def test_a_process_serves_without_its_port_if_all_are_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("baton.platform.observe.listeners.NUM_PORTS", 1)
    with socket.create_server((HOST, 0)) as taken:
        number = taken.getsockname()[1]
        with bind_first_free(HOST, number) as other:
            assert other.getsockname()[1] != number
