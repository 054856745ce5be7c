"""What tests here share, a real Ray cluster each.

server    `baton serve` with 1 prefill and 1 decode replica
nodes     three nodes, for `baton deploy`; whoever takes one down brings another up
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cluster.deployments import Nodes, three_nodes
from tests.live_server import Server, start_server, stop_wholly

HANGS_AFTER_S = 600  # processes start here, which take minutes where the machine is busy


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent) and not item.get_closest_marker(
            "timeout"
        ):
            item.add_marker(pytest.mark.timeout(HANGS_AFTER_S))


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    # Ray's numbers come each second, not each ten: `test_ray_dashboard.py` waits for some.
    server = start_server(RAY_metrics_report_interval_ms="1000")
    yield server
    stop_wholly(server)


@pytest.fixture(scope="session")
def nodes() -> Iterator[Nodes]:
    with three_nodes() as nodes:
        yield nodes
