"""What the commands say when something is wrong, before anything is started."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
from typer.testing import CliRunner

from baton.platform.cli.main import app

run = CliRunner().invoke
REPLICA = {
    "replica": "prefill-b6x7lxkx",
    "is_reachable": True,
    "is_ready": True,
    "num_running": 128,
    "num_waiting": 1024,
    "num_queued_tokens": 32768,
    "num_blocks": 13107,
    "num_free_blocks": 0,
    "metrics": {"tokens_sampled_total": 123456.0},
}


@contextmanager
def answering(answer: bytes) -> Iterator[int]:
    """A port that gives this answer, whatever it is asked."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        thread.join(10)


def http(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


@pytest.mark.parametrize("answer", [b"\0\0\x18\x04\x1b[31m", http(b"<html>"), http(b"[]"), b""])
def test_status_of_something_else_is_told_in_one_sentence(answer: bytes) -> None:
    with answering(answer) as port:
        result = run(app, ["status", "--url", f"http://127.0.0.1:{port}"])

    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    assert "no gateway at" in result.output
    assert "\x1b" not in result.output


def test_status_of_a_busy_replica_fits_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    report = {"num_waiting": 3, "pools": {"prefill": [REPLICA], "decode": []}}

    with answering(http(msgspec.json.encode(report))) as port:
        result = run(app, ["status", "--url", f"http://127.0.0.1:{port}"])

    (row,) = [line for line in result.output.splitlines() if "prefill-b6x7lxkx" in line]
    assert row.split()[2:] == ["128", "1024", "32768", "13107", "of", "13107", "123456"]


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("option", ["--port", "--grpc-port"])
def test_serve_refuses_a_port_in_use(host: str, option: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip(f"this machine has no {host}")
    other = "--grpc-port" if option == "--port" else "--port"
    with listener:
        port = str(listener.getsockname()[1])
        result = run(app, ["serve", "--host", host, option, port, other, "0"])

    assert result.exit_code == 2
    assert "Address already in use" in result.output
    assert f"with {option}" in result.output.replace("\n", " ")


@pytest.mark.parametrize("host", ["", "no-such-host.invalid"])
def test_serve_refuses_a_host_that_is_none(host: str) -> None:
    result = run(app, ["serve", "--host", host, "--port", "0", "--grpc-port", "0"])

    assert result.exit_code == 2
    assert "--host" in result.output
