"""The gateway as Serve tells it what to go by."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.in_process_fleet import running_fleet

from baton.core.errors import InvalidConfig
from baton.core.ids import Epoch
from baton.gateway.fleet.dispatch import ReplicaDispatcher
from baton.gateway.fleet.membership import warm_up
from baton.platform.cluster import gateway_actor
from baton.platform.cluster.gateway_actor import GatewayActor
from baton.platform.config.deployment import DeploymentConfig
from baton.router.placer import Routing
from baton.router.policies.cost import Cost


async def test_what_cannot_be_is_refused_at_the_start_and_left_out_later() -> None:
    told = {"gateway": {"max_waiting": "many"}}
    starts: Any = SimpleNamespace(_config=DeploymentConfig(), _gateway=None)
    runs: Any = SimpleNamespace(_config=DeploymentConfig(), _gateway=object())

    with pytest.raises(InvalidConfig, match="max_waiting"):
        await GatewayActor.reconfigure(starts, told)
    await GatewayActor.reconfigure(runs, told)  # Serve stops those that raise


async def test_what_a_gateway_still_waits_for_is_told_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gateway_actor, "READY_PATIENCE_S", 0.001)
    monkeypatch.setattr(warm_up, "PAUSE_S", 600.0)
    async with running_fleet(prefill=0, decode=1) as fleet:
        new = ReplicaDispatcher(Routing(Cost()), max_waiting=9, no_replica_grace_s=60.0)
        waits: Any = SimpleNamespace(_node=SimpleNamespace(dispatcher=new), _wanted={})
        try:
            nobody = await GatewayActor.lacks(waits)
            new.fleet.warm_up.begin([Epoch("silent")])
            await new.fleet.apply(fleet.registry.membership())
            untold = await GatewayActor.lacks(waits)
        finally:
            await new.fleet.close()

    assert nobody == "a decode replica to take requests"
    assert untold == "replicas to report what they have cached"
