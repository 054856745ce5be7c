"""Passes the registry's snapshots to a fleet, as long as the gateway runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from baton.core.ids import Epoch
from baton.core.replicas import Membership, ReplicaInfo
from baton.core.wording import count_of

log = logging.getLogger(__name__)

WATCH_TIMEOUT_S = 10.0
REGISTRY_RETRY_S = 0.5


class RegistryClient(Protocol):
    async def watch(self, incarnation: Epoch | None, version: int) -> Membership: ...


class Follower(Protocol):
    @property
    def replicas(self) -> Sequence[ReplicaInfo]: ...

    async def apply(self, snapshot: Membership) -> None: ...


async def follow(registry: RegistryClient, fleet: Follower) -> None:
    """Follow the registry for ever. While it is away, the known replicas stay."""
    incarnation: Epoch | None = None
    version = -1
    while True:
        try:
            async with asyncio.timeout(WATCH_TIMEOUT_S):
                snapshot = await registry.watch(incarnation, version)
        except Exception as error:  # whatever Ray raises while it or its head is away
            known = count_of(len(fleet.replicas), "replica")
            log.warning("the registry is away (%r); keeping %s", error, known)
            await asyncio.sleep(REGISTRY_RETRY_S)
            continue
        try:
            await fleet.apply(snapshot)
        except Exception:  # without this loop the fleet would never learn of a replica again
            log.exception("what the registry says cannot be followed; asking again")
            await asyncio.sleep(REGISTRY_RETRY_S)
            continue
        incarnation, version = snapshot.incarnation, snapshot.version
