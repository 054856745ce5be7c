"""Whose process listens, and who gets an operator's key."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from baton.core.errors import Unavailable
from baton.gateway.access.config import GatewayConfig
from baton.platform.cli.options.gateway_options import admin_pages
from baton.platform.observe import listeners
from baton.platform.observe.listeners import bind_first_free, foreign_listeners

HOST = "127.0.0.1"
STRANGER = 4321


@pytest.fixture
def taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> socket.socket:
    """A port that a stranger listens on, as the system tells."""
    listener = socket.create_server((HOST, 0))
    port = listener.getsockname()[1]
    sockets = tmp_path / "tcp"
    rest = "00000000:0000 {state} 00000000:00000000 00:00000000 00000000 {uid} 0 1 1 0 100 0 0 10 0"
    rows = [(port, "0A", STRANGER), (port, "01", 77), (port ^ 1, "0A", 88)]
    lines = [
        f"{i}: 0100007F:{number:04X} {rest.format(state=state, uid=uid)}"
        for i, (number, state, uid) in enumerate(rows)
    ]
    sockets.write_text("\n".join(["sl local_address ...", *lines, ""]))
    monkeypatch.setattr(listeners, "SOCKETS", (sockets, tmp_path / "none"))
    return listener


def test_the_key_goes_to_no_other_user_of_the_machine_unless_told_so(taken: socket.socket) -> None:
    with taken:
        port = taken.getsockname()[1]
        config = GatewayConfig(admin_port=port)
        url = f"http://{HOST}:{port}"
        with pytest.raises(Unavailable, match=rf"uid {STRANGER}.*--url {url}"):
            admin_pages(None, "key", None, config)

        assert admin_pages(None, None, None, config).url == url
        assert admin_pages(url, "key", None, config).url == url


def test_a_gateway_warns_of_a_stranger_at_its_port(
    taken: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    with taken, bind_first_free(HOST, taken.getsockname()[1]):
        assert f"another user (uid {STRANGER})" in caplog.text


@pytest.mark.skipif(not listeners.SOCKETS[0].exists(), reason="needs Linux's table of sockets")
def test_the_owner_of_a_port_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server((HOST, 0)) as own:
        port, uid = own.getsockname()[1], os.geteuid()
        assert foreign_listeners(port) == set()
        monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
        monkeypatch.setattr(listeners, "ROOT", STRANGER)
        assert foreign_listeners(port) == {uid}
