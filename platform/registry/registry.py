"""The replicas that are alive, as they say themselves.

Replicas send a heartbeat, with their ReplicaInfo while that is new; one that stays silent for
`ttl_s` is dropped. Gateways watch for a newer version. It is a hint only: gateways keep their last
snapshot when the registry is away, and learn of a dead replica from its broken stream long before
this does.

A restarted registry knows nobody. Its new incarnation and young age say so, and
`gateway/fleet/membership.py` removes nothing on its word until everybody had time to report again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from baton.core.clock import Clock, monotonic
from baton.core.ids import Epoch, ReplicaId, new_epoch
from baton.core.replicas import HEARTBEAT_S, Membership, ReplicaInfo, StartingReplica
from baton.platform.registry.limit_shares import LimitShares

TTL_S = 3.5 * HEARTBEAT_S
LEFT_FOR_S = 60.0
"""So long a farewell is told of: to gateways that are slow to ask, too."""
WATCH_S = 2.0
CALM_WATCH_S = 5.0
"""A gateway that waits twice as long takes the registry for away, and asks again."""
LIVELY_S = 30.0
STARTING_TTL_S = 10.0
"""Replicas that start are forgiven a longer silence: imports hold up everything else."""


@dataclass(frozen=True, slots=True)
class _Heard:
    starting: StartingReplica
    at: float
    stage_began_at: float


class Registry:
    """Single-threaded; `platform/cluster/registry_actor.py` makes it an actor."""

    def __init__(self, *, ttl_s: float = TTL_S, clock: Clock = monotonic) -> None:
        self._ttl_s = ttl_s
        self._clock = clock
        self._incarnation = new_epoch()
        self._started_at = clock()
        self._version = 0
        self._replica_by_epoch: dict[Epoch, ReplicaInfo] = {}
        self._heard_at: dict[Epoch, float] = {}
        self._unsaid: set[Epoch] = set()
        """Of whom something is kept here that it did not say itself: it is to say all of it."""
        self._left_at: dict[Epoch, float] = {}
        self._starting_by_id: dict[ReplicaId, _Heard] = {}
        self._changed = asyncio.Event()
        self._changed_at = clock()
        self.limit_shares = LimitShares(clock)

    def heartbeat(self, info: ReplicaInfo) -> None:
        self._heard_at[info.epoch] = self._clock()
        self._unsaid.discard(info.epoch)
        self._left_at.pop(info.epoch, None)
        self._starting_by_id.pop(info.replica_id, None)
        if self._replica_by_epoch.get(info.epoch) != info:
            self._replica_by_epoch[info.epoch] = info
            self._bump()

    def beat(self, epoch: Epoch) -> bool:
        """A heartbeat of who has nothing new to say; False if the whole of it is not known."""
        if epoch not in self._replica_by_epoch or epoch in self._unsaid:
            return False
        self._heard_at[epoch] = self._clock()
        return True

    def report_starting(self, starting: StartingReplica) -> None:
        """A new stage is news; how much of it is done is told to who asks anyway."""
        if any(it.replica_id == starting.replica_id for it in self._replica_by_epoch.values()):
            return  # overtaken by its own heartbeat
        now = self._clock()
        before = self._starting_by_id.get(starting.replica_id)
        is_same = before is not None and (
            (before.starting.stage, before.starting.failure) == (starting.stage, starting.failure)
        )
        began_at = before.stage_began_at if before is not None and is_same else now
        self._starting_by_id[starting.replica_id] = _Heard(starting, now, began_at)
        if not is_same:
            self._bump()

    def leave(self, epoch: Epoch) -> None:
        """A replica's farewell. Safe to repeat."""
        if epoch not in self._left_at:
            self._left_at[epoch] = self._clock()
            self._bump()
        self._drop(epoch)

    def _drop(self, epoch: Epoch) -> None:
        self._heard_at.pop(epoch, None)
        self._unsaid.discard(epoch)
        if self._replica_by_epoch.pop(epoch, None) is not None:
            self._bump()

    def spare(self, epoch: Epoch, *, may_be_last: bool = False) -> str:
        """Why a replica may not leave its role; empty if it may, and then it counts as not ready.

        Asked here so that of two which would leave at once, one stays if they are the last, unless
        the deployment does without (`may_be_last`).
        """
        self._forget_the_silent()
        own = self._replica_by_epoch.get(epoch)
        if own is None:
            return "the registry does not know it yet; ask again in a moment"
        others = (it for it in self._replica_by_epoch.values() if it.epoch != epoch)
        takes_over = (it.is_ready and (it.role, it.model) == (own.role, own.model) for it in others)
        if not (may_be_last or any(takes_over)):
            return (
                f"{own.replica_id} is the last {own.role} replica that takes requests; add another "
                "first"
            )
        self.heartbeat(replace(own, is_ready=False))
        self._unsaid.add(epoch)
        return ""

    def membership(self) -> Membership:
        self._forget_the_silent()
        self._forget_silent_starts()
        now = self._clock()
        self._left_at = {e: at for e, at in self._left_at.items() if now - at <= LEFT_FOR_S}
        return Membership(
            incarnation=self._incarnation,
            version=self._version,
            age_s=self._clock() - self._started_at,
            replicas=tuple(self._replica_by_epoch.values()),
            starting=tuple(self._starting()),
            left=tuple(self._left_at),
        )

    @property
    def patience_s(self) -> float:
        """How long a watcher may be left without a word: a short while after news, and while
        somebody starts, for it may keep who is silent here, or show how far they are."""
        is_lively = self._starting_by_id or self._clock() - self._changed_at < LIVELY_S
        return WATCH_S if is_lively else CALM_WATCH_S

    async def watch(
        self, incarnation: Epoch | None, version: int, timeout_s: float = WATCH_S
    ) -> Membership:
        """Return the membership once it differs from what the caller has, or after a while."""
        current = self.membership()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while (current.incarnation, current.version) == (incarnation, version):
                    with suppress(TimeoutError):
                        async with asyncio.timeout(self._may_be_silent_in_s()):
                            await self._changed.wait()
                    current = self.membership()
        return self.membership()

    def _may_be_silent_in_s(self) -> float | None:
        """When somebody is to be dropped, unless it is heard again; None while nobody is known."""
        if not self._heard_at:
            return None
        return max(0.01, min(self._heard_at.values()) + self._ttl_s - self._clock())

    def _forget_the_silent(self) -> None:
        now = self._clock()
        for epoch in [e for e, heard in self._heard_at.items() if now - heard > self._ttl_s]:
            self._drop(epoch)

    def _starting(self) -> Iterator[StartingReplica]:
        now = self._clock()
        for heard in self._starting_by_id.values():
            yield replace(heard.starting, stage_s=now - heard.stage_began_at)

    def _forget_silent_starts(self) -> None:
        now = self._clock()
        for replica_id, heard in list(self._starting_by_id.items()):
            if now - heard.at > STARTING_TTL_S:
                del self._starting_by_id[replica_id]
                self._bump()

    def _bump(self) -> None:
        self._version += 1
        self._changed_at = self._clock()
        self._changed.set()
        self._changed = asyncio.Event()
