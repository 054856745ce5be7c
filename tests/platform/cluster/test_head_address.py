from __future__ import annotations

import socket

import pytest

from baton.core.errors import Unavailable
from baton.platform.cluster.head_address import check_head


def test_an_address_where_nobody_listens_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        for reachable in (address, f"ray://{address}", "auto", ""):
            check_head(reachable)

    for gone in (address, f"ray://{address}", "127.0.0.1:99999", ".nowhere:1"):
        with pytest.raises(Unavailable, match=f"no Ray cluster at {gone}: .* is it running"):
            check_head(gone)
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(Unavailable, match=address):
        check_head("")
