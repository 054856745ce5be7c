"""One `baton serve` for all tests here: a real Ray cluster with 1 prefill and 1 decode replica."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest
from tests.live_server import Server, start_server, stop_server


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    server = start_server()
    yield server
    ours = server.processes()
    status = stop_server(server)
    _, alive = psutil.wait_procs(ours, timeout=60)
    assert status == 0, "".join(server.output)
    assert not alive, f"left behind: {alive}"
