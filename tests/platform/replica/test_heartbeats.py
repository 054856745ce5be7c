"""When a replica that serves tells the registry of itself."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

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

    registry: Any = SimpleNamespace(heartbeat=heartbeat, is_cut=False)
    config, engine = DeploymentConfig(), object()
    assignment = Assignment("baton", config, Role.DECODE, Path(), INFO.replica_id, registry)
    replica: Any = SimpleNamespace(info=INFO, chaos=None)
    beating = asyncio.create_task(
        Serving(assignment, engine, "127.0.0.1")._beat(replica)  # type: ignore[arg-type]
    )
    await until(lambda: told)
    replica.info = replace(INFO, is_ready=False)
    await until(lambda: told[-1] == replica.info)
    registry.is_cut = True
    await until(lambda: len(told) > 2)

    beating.cancel()
    assert told[:3] == [INFO, replica.info, replica.info]
