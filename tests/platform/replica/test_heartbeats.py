"""When a replica that serves tells the registry of itself."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest
from tests.gateway.fleet.known_replicas import make_replica
from tests.gateway.fleet.scripted_replica import until

from baton.core.replicas import ReplicaInfo, Role
from baton.platform.config.deployment import DeploymentConfig
from baton.platform.replica import serving
from baton.platform.replica.assignment import Assignment
from baton.platform.replica.serving import Serving

INFO = make_replica("decode-1")


async def test_news_are_told_at_once_however_seldom_the_registry_wants_to_hear_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serving, "HEARTBEAT_S", 0.001)
    told: list[ReplicaInfo] = []

    async def heartbeat(info: ReplicaInfo) -> float:
        told.append(info)
        return 3600.0

    replica: Any = SimpleNamespace(info=INFO, chaos=None)
    registry = SimpleNamespace(heartbeat=heartbeat, is_cut=False)
    beating = asyncio.create_task(told_of(registry)._beat(replica))
    await until(lambda: told)
    replica.info = replace(INFO, is_ready=False)
    await until(lambda: told[-1] == replica.info)
    registry.is_cut = True
    await until(lambda: len(told) > 2)

    beating.cancel()
    assert told[:3] == [INFO, replica.info, replica.info]


async def test_a_replica_ends_though_its_registry_ends_as_well_and_answers_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serving, "FAREWELL_S", 0.001)
    asked: list[str] = []

    async def never(what: str) -> None:
        asked.append(what)
        await asyncio.Event().wait()

    registry = SimpleNamespace(
        heartbeat=lambda info: never("heartbeat"), leave=lambda epoch: never("leave"), is_cut=False
    )
    ending = told_of(registry)
    ending.replica = replica = AsyncMock(info=INFO, chaos=None)
    ending._heart = asyncio.create_task(ending._beat(replica))
    async with asyncio.timeout(60):  # only keeps a failing test from hanging
        await ending.drain()
        await ending.leave()

    assert asked[-1] == "leave"
    replica.stop.assert_awaited()


def told_of(registry: object) -> Serving:
    """A decode replica that tells this registry of itself."""
    engine: Any = object()
    config, anywhere = DeploymentConfig(), cast(Any, registry)
    assignment = Assignment("baton", config, Role.DECODE, Path(), INFO.replica_id, anywhere)
    return Serving(assignment, engine, "127.0.0.1")
