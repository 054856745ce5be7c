"""Who serves: the replicas that are alive, as they say themselves.

Replicas send a heartbeat with their ReplicaInfo; one that stays silent for `ttl_s` is dropped.
Gateways watch for a newer version. It is a hint only: gateways keep their last snapshot when
the registry is away, and learn of a dead replica from its broken stream long before this does.

A restarted registry knows nobody. Its new incarnation and young age say so, and
`platform/membership.py` removes nothing on its word until everybody had time to report again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from baton.core.clock import Clock, monotonic
from baton.core.ids import Epoch, ReplicaId, new_epoch
from baton.core.messages import Membership, ReplicaInfo

K = TypeVar("K")

HEARTBEAT_S = 1.0
"""How often replicas report."""

TTL_S = 3.5 * HEARTBEAT_S


@dataclass(frozen=True, slots=True)
class Loading:
    """A replica that is not ready yet, for those who wait for it."""

    replica_id: ReplicaId
    role: str
    stage: str
    fraction: float


class Registry:
    """Single-threaded; `platform/deploy.py` makes it an actor."""

    def __init__(self, *, ttl_s: float = TTL_S, clock: Clock = monotonic) -> None:
        self._ttl_s = ttl_s
        self._clock = clock
        self._incarnation = new_epoch()
        self._started_at = clock()
        self._version = 0
        self._replica_by_epoch: dict[Epoch, ReplicaInfo] = {}
        self._heard_at: dict[Epoch, float] = {}
        self._loading_by_id: dict[ReplicaId, Loading] = {}
        self._loading_heard_at: dict[ReplicaId, float] = {}
        self._changed = asyncio.Event()

    def heartbeat(self, info: ReplicaInfo) -> None:
        self._heard_at[info.epoch] = self._clock()
        self._forget_loading(info.replica_id)
        if self._replica_by_epoch.get(info.epoch) != info:
            self._replica_by_epoch[info.epoch] = info
            self._bump()

    def report_loading(self, loading: Loading) -> None:
        self._loading_heard_at[loading.replica_id] = self._clock()
        self._loading_by_id[loading.replica_id] = loading

    def loading(self) -> tuple[Loading, ...]:
        for replica_id in self._silent(self._loading_heard_at):
            self._forget_loading(replica_id)
        return tuple(self._loading_by_id.values())

    def leave(self, epoch: Epoch) -> None:
        """A replica's farewell. Safe to repeat."""
        self._heard_at.pop(epoch, None)
        if self._replica_by_epoch.pop(epoch, None) is not None:
            self._bump()

    def membership(self) -> Membership:
        for epoch in self._silent(self._heard_at):
            self.leave(epoch)
        return Membership(
            incarnation=self._incarnation,
            version=self._version,
            age_s=self._clock() - self._started_at,
            replicas=tuple(self._replica_by_epoch.values()),
        )

    async def watch(
        self, incarnation: Epoch | None, version: int, timeout_s: float = 2.0
    ) -> Membership:
        """Return the membership once it differs from what the caller has, or after a while."""
        current = self.membership()
        if current.incarnation == incarnation and current.version == version:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), timeout_s)
            current = self.membership()
        return current

    def _silent(self, heard_at: Mapping[K, float]) -> list[K]:
        now = self._clock()
        return [key for key, heard in heard_at.items() if now - heard > self._ttl_s]

    def _forget_loading(self, replica_id: ReplicaId) -> None:
        self._loading_by_id.pop(replica_id, None)
        self._loading_heard_at.pop(replica_id, None)

    def _bump(self) -> None:
        self._version += 1
        self._changed.set()
        self._changed = asyncio.Event()
