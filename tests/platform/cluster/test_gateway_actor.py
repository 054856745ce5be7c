"""The gateway as Serve tells it what to go by."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from baton.core.errors import InvalidConfig
from baton.platform.cluster.gateway_actor import GatewayActor
from baton.platform.config.deployment import DeploymentConfig


async def test_what_cannot_be_is_refused_at_the_start_and_left_out_later() -> None:
    told = {"gateway": {"max_waiting": "many"}}
    starts: Any = SimpleNamespace(_config=DeploymentConfig(), _gateway=None)
    runs: Any = SimpleNamespace(_config=DeploymentConfig(), _gateway=object())

    with pytest.raises(InvalidConfig, match="max_waiting"):
        await GatewayActor.reconfigure(starts, told)
    await GatewayActor.reconfigure(runs, told)  # Serve stops those that raise
