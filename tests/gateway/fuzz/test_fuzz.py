"""Nothing that a client sends breaks the gateway, or stays behind."""

from __future__ import annotations

import asyncio
import gc

import pytest
from tests.gateway.fuzz.run import fuzz


@pytest.mark.wide
async def test_bent_requests_break_nothing_and_leave_nothing() -> None:
    for _ in range(2):  # clients that other tests left behind: their ends are logged as well
        gc.collect()
        await asyncio.sleep(0)
    found = await fuzz(seed=1, seconds=20.0, num_clients=6)

    assert found.faults == []
