"""The registry's process, without Ray."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from tests.gateway.fleet.known_replicas import make_replica

from baton.core import clock as clocks
from baton.core.clock import AwakeClock, ManualClock
from baton.core.replicas import HEARTBEAT_S
from baton.platform.cluster.registry import registry_actor
from baton.platform.cluster.registry.registry_actor import RegistryActor
from baton.platform.config.deployment import DeploymentConfig
from baton.platform.registry.registry import TTL_BEATS


async def test_a_registry_that_stood_still_drops_no_replica_whose_heartbeats_lie_unread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = ManualClock()
    monkeypatch.setattr(clocks, "TICK_S", 0.0)
    monkeypatch.setattr(registry_actor, "AwakeClock", partial(AwakeClock, real))
    monkeypatch.setattr(registry_actor, "start_actor_log", lambda *_: None)
    actor = RegistryActor(DeploymentConfig())
    await actor.reconfigure({})
    assert actor._port is not None
    actor._registry.heartbeat(make_replica("a"))

    real.advance(stood_still_s := 10 * TTL_BEATS)

    assert [info.replica_id for info in (await actor.membership()).replicas] == ["a"]
    async with asyncio.timeout(120):
        while (await actor.membership()).replicas:  # it listens again, and hears nothing
            real.advance(0.25)
            await asyncio.sleep(0.001)
    await actor._port.stop()
    assert real() < stood_still_s + 2 * TTL_BEATS * HEARTBEAT_S
