"""How a client reaches its server: what is refused, what is warned of, what is encrypted."""

from __future__ import annotations

import asyncio
import warnings
from pathlib import Path
from typing import Any

import pytest
from tests.client.fake_server import answering, fake_server, last_response

from baton.client.async_client import AsyncBatonClient
from baton.client.client import BatonClient
from baton.client.connection import (
    ClientOptions,
    PlaintextKeyWarning,
    connection_to,
    is_loopback,
)
from baton.client.errors import InvalidRequest


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("localhost:8001", True),
        ("127.0.0.1:8001", True),
        ("[::1]:8001", True),
        ("unix:/run/baton.sock", True),
        ("dns:///localhost:8001", True),
        ("llm.example.com:443", False),
        ("10.0.0.1:8001", False),
        ("localhost.example.com:8001", False),
    ],
)
def test_this_machine_is_told_from_others(target: str, expected: bool) -> None:
    assert is_loopback(target) is expected


def test_a_key_that_others_can_read_is_warned_of() -> None:
    with pytest.warns(PlaintextKeyWarning, match="tls=True") as caught:
        BatonClient("llm.example.com:8001", api_key="secret").close()

    assert caught[0].filename == __file__
    assert "secret" not in str(caught[0].message)


@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("localhost:8001", {"api_key": "secret"}),
        ("llm.example.com:443", {"api_key": "secret", "tls": True}),
        ("llm.example.com:8001", {}),
    ],
)
def test_others_are_not_warned(target: str, options: ClientOptions) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        connection = connection_to(target, options)

    assert "secret" not in repr(connection)


@pytest.mark.parametrize("options", [{"client_cert": b"x"}, {"ca_cert": b"x", "tls": False}])
def test_certificates_that_cannot_be_used_are_refused(options: ClientOptions) -> None:
    with pytest.raises(ValueError, match="cert"):
        connection_to("localhost:1", options)


def test_a_missing_certificate_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"ca\.pem"):
        connection_to("localhost:1", {"ca_cert": tmp_path / "ca.pem"})


def test_unknown_options_are_refused() -> None:
    options: Any = {"apikey": "x"}

    with pytest.raises(TypeError, match="unknown option 'apikey'"):
        connection_to("localhost:1", options)


@pytest.mark.parametrize("timeout_s", [float("inf"), float("nan"), 0, -1])
def test_what_is_no_time_limit_is_refused(timeout_s: float) -> None:
    with pytest.raises(InvalidRequest, match="positive number of seconds"):
        connection_to("localhost:1", {"timeout_s": timeout_s})


def test_an_async_client_may_be_made_before_the_one_event_loop_that_it_serves() -> None:
    async def ask() -> str:
        return (await client.generate("x")).text

    with fake_server(answering(last_response("a"))) as (_, target):
        client = AsyncBatonClient(target)

        assert asyncio.run(ask()) == "a"
        with pytest.raises(RuntimeError, match="make another for this loop"):
            asyncio.run(ask())
