"""Nothing that a client sends breaks the gateway, or stays behind."""

from __future__ import annotations

import pytest
from tests.gateway.fuzz.run import fuzz


@pytest.mark.parametrize("seconds", [1, pytest.param(20, marks=pytest.mark.wide)])
async def test_bent_requests_break_nothing_and_leave_nothing(seconds: float) -> None:
    found = await fuzz(seed=1, seconds=seconds, num_clients=6)

    assert found.faults == []
