"""Nothing that a client sends breaks the gateway, or stays behind."""

from __future__ import annotations

import pytest
from tests.gateway.fuzz.run import fuzz


@pytest.mark.wide
async def test_bent_requests_break_nothing_and_leave_nothing() -> None:
    found = await fuzz(seed=1, seconds=20.0, num_clients=6)

    assert found.faults == []
