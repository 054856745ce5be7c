"""`baton drain` against something that answers like a gateway."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from tests.free_ports import free_ports
from tests.served import served
from typer.testing import CliRunner

from baton.gateway.access.config import GatewayConfig
from baton.platform.cli.main import app
from baton.platform.cli.options import gateway_options
from baton.platform.cli.terminal import asking_again

run = CliRunner().invoke


@contextmanager
def gateway(
    *answers: tuple[int, dict[str, Any]], port: int = 0
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The n-th request gets the n-th answer; the bodies asked with."""
    asked: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            asked.append({"path": self.path, **json.loads(body)})
            status, answer = answers[min(len(asked), len(answers)) - 1]
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """Quietly."""

    with served(HTTPServer(("127.0.0.1", port), Handler)) as url:
        yield url, asked


def left(num_open: int) -> tuple[int, dict[str, Any]]:
    return 200, {"replica": "decode-1", "role": "decode", "num_open": num_open}


def drain(url: str, *options: str) -> tuple[int, Sequence[str]]:
    result = run(app, ["drain", "decode-1", "--url", url, *options])
    return result.exit_code, result.output.splitlines()


def test_it_returns_when_nothing_is_left() -> None:
    with gateway(left(2), left(2), left(0)) as (url, asked):
        status, lines = drain(url)

    assert status == 0
    assert lines == [
        "decode-1: 2 requests still to leave",
        "decode-1 is draining: nothing is left there",
    ]
    assert asked == [{"path": "/debug/drain", "replica": "decode-1", "force": False}] * 3


def test_without_waiting_it_returns_at_once() -> None:
    with gateway(left(3)) as (url, asked):
        status, lines = drain(url, "--wait", "0", "--force")

    assert status == 0
    assert lines == ["decode-1 is draining: 3 requests still to leave"]
    assert [one["force"] for one in asked] == [True]


def test_what_the_gateway_refuses_is_told_in_its_words() -> None:
    error = {"error": {"message": "no replica is called 'decode-1'; there are: decode-2"}}
    with gateway((400, error)) as (url, _):
        status, lines = drain(url)

    assert status == 2
    assert lines == ["baton drain: no replica is called 'decode-1'; there are: decode-2"]


def test_a_key_that_may_not_drain_is_told_which_may() -> None:
    error = {"error": {"message": "/debug/drain needs an operator's API key"}}
    with gateway((403, error)) as (url, _):
        status, lines = drain(url, "--api-key", "tenant's")

    assert status == 1
    assert lines == [
        "baton drain: /debug/drain needs an operator's API key; give it with --api-key or "
        "BATON_API_KEY"
    ]


def test_a_drain_that_takes_too_long_goes_on_without_being_watched() -> None:
    with gateway(left(1)) as (url, _):
        status, lines = drain(url, "--wait", "0.1")

    assert status == 1
    assert "decode-1 still has 1 request after 0.1 s" in lines[-1]


def test_an_answer_that_a_busy_gateway_misses_ends_nothing() -> None:
    busy = (503, {"error": {"message": "the command to decode-1 failed: Deadline Exceeded"}})
    with gateway(left(2), busy, left(0)) as (url, asked):
        status, lines = drain(url)

    assert (status, len(asked)) == (0, 3)
    assert lines[-1] == "decode-1 is draining: nothing is left there"


def test_a_gateway_that_answers_no_more_is_not_asked_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asking_again, "PATIENCE_S", 0.0)
    with gateway(left(2), (503, {"error": {"message": "it is stopping"}})) as (url, _):
        status, lines = drain(url)

    assert status == 1
    assert lines[-1] == "baton drain: it is stopping"


def test_the_public_port_is_told_from_that_of_operators() -> None:
    error = {"error": {"message": "POST /debug/drain: Not Found", "code": "not_found"}}
    with gateway((404, error)) as (url, _):
        status, lines = drain(url)

    assert status == 1
    assert "operators are answered at gateway.admin_port (8002 by default)" in " ".join(lines)


def test_without_an_address_the_first_gateway_of_this_machine_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = free_ports(2)
    with gateway(left(0), port=second) as (_, asked):
        monkeypatch.setattr(
            gateway_options, "GatewayConfig", lambda: GatewayConfig(admin_port=first)
        )
        result = run(app, ["drain", "decode-1"])

    assert (result.exit_code, len(asked)) == (0, 1), result.output
