"""The registry: which replicas are alive, by their own reports.

Replicas send a heartbeat, with their ReplicaInfo while that is new; one that stays silent for 3.5
of its reporting periods is dropped. Time in which the registry itself stands still is no silence
(`AwakeClock`). Gateways watch for a newer version, and receive what has changed since the one they
have: all of it if that was forgotten, or another incarnation's. It is a hint only: gateways keep
what they know when the registry is away, and learn of a dead replica from its broken stream long
before this does.

The more replicas, the less often each reports (`ReportIntervals`), so that many cost no more than a
few; news are reported at once all the same. Those that report seldom hold a call open, whose end
the registry notices. News that come together are passed on together.

A restarted registry knows nobody. Its new incarnation and young age say so, and
`gateway/fleet/membership/membership.py` removes nothing on its word until everybody had time to
report again.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace

from baton.core.clock import Clock, monotonic
from baton.core.ids import Epoch, new_epoch
from baton.core.kv_layout import KvLayout
from baton.core.replicas import (
    HEARTBEAT_S,
    Membership,
    MembershipUpdate,
    ReplicaInfo,
    ReportIntervals,
    StartingReplica,
)
from baton.platform.registry.journal import MAX_GONE, Journal
from baton.platform.registry.limit_shares import LimitShares
from baton.platform.registry.starting import StartingReplicas

TTL_BEATS = 3.5
LEFT_FOR_S = 60.0
"""Seconds for which a deregistration is reported, also to slow gateways."""
WATCH_S = 2.0
CALM_WATCH_S = 5.0
"""The longest silence of a watch; a gateway that waits twice as long asks again."""
LIVELY_S = 30.0
NEWS_GAP_S = 0.2
"""Least seconds from one time that gateways get news to the next."""


@dataclass(slots=True)
class _Liveness:
    """Liveness of one replica."""

    until_s: float
    """When it is dropped if it stays silent."""
    telling: int
    """The sequence number of its last report."""
    is_unsaid: bool = False
    """Whether the entry differs from its own report, so that a full report is needed."""


@dataclass(frozen=True, slots=True)
class _Farewell:
    version: int
    at_s: float
    telling: int


class Registry:
    """Single-threaded; `platform/cluster/registry/registry_actor.py` makes it an actor."""

    def __init__(
        self,
        *,
        ttl_s: float = TTL_BEATS * HEARTBEAT_S,
        max_gone: int = MAX_GONE,
        clock: Clock = monotonic,
    ) -> None:
        """`ttl_s`: of a replica that reports each HEARTBEAT_S; longer for the others. `max_gone`:
        of those that went, so many are known: a gateway that asks later gets the whole list."""
        self._ttl_beats = ttl_s / HEARTBEAT_S
        self._clock = clock
        self._incarnation = new_epoch()
        self._started_at = clock()
        self._version = 0
        self._replicas = Journal[Epoch, ReplicaInfo](max_gone)
        self._layouts = Journal[KvLayout, KvLayout]()
        self._num_of_layout = Counter[KvLayout]()
        self._heard: dict[Epoch, _Liveness] = {}
        self._silence_s = math.inf
        """No replica is dropped before this time."""
        self._left: dict[Epoch, _Farewell] = {}
        self._starting = StartingReplicas(clock, self._bump, max_gone)
        self._changed = asyncio.Event()
        self._changed_at = clock()
        self._told_version = 0
        self._told_at = -math.inf
        self.limit_shares = LimitShares(clock)

    @property
    def intervals(self) -> ReportIntervals:
        return ReportIntervals.of(len(self._replicas))

    def heartbeat(self, info: ReplicaInfo, telling: int = 0) -> ReportIntervals:
        """`telling`: later ones of a replica have higher numbers; what was overtaken says nothing.
        Returns how often it is to report from now on."""
        epoch, before = info.epoch, self._heard.get(info.epoch)
        if before is not None and telling < before.telling:
            return self.intervals
        if epoch in self._left and telling < self._left[epoch].telling:
            return self.intervals
        self._left.pop(epoch, None)
        self._starting.serves(info.replica_id)
        if self._replicas.get(epoch) != info:
            self._put(info)
        self._heard[epoch] = _Liveness(self._may_be_silent_until(), telling)
        self._silence_s = min(self._silence_s, self._heard[epoch].until_s)
        return self.intervals

    def beat(self, epoch: Epoch, telling: int = 0) -> bool:
        """An unchanged heartbeat; False if a full report is needed."""
        heard = self._heard.get(epoch)
        if heard is None or heard.is_unsaid or heard.telling != telling:
            return False
        heard.until_s = self._may_be_silent_until()
        self._silence_s = min(self._silence_s, heard.until_s)
        return True

    def is_alive(self, epoch: Epoch) -> bool:
        """Whether the replica counts as alive."""
        self._drop_silent()
        return epoch in self._heard

    def hang_up(self, epoch: Epoch) -> None:
        """Note that a replica's connection has ended: unless it reports in a moment, it is
        gone."""
        heard = self._heard.get(epoch)
        if heard is None:
            return
        soon_s = self._clock() + self._ttl_beats * HEARTBEAT_S
        if soon_s < heard.until_s:
            heard.until_s = soon_s
            self._silence_s = min(self._silence_s, soon_s)
            self._wake()

    def _may_be_silent_until(self) -> float:
        return self._clock() + self._ttl_beats * self.intervals.beat_s

    def report_starting(self, starting: StartingReplica) -> float:
        """Returns the seconds until it is to say how much further it is."""
        if any(it.replica_id == starting.replica_id for it in self._replicas):
            return HEARTBEAT_S  # overtaken by its own heartbeat
        return self._starting.update(starting)

    def leave(self, epoch: Epoch, telling: int = 0) -> None:
        """A replica's farewell. Safe to repeat. `telling`: as of a heartbeat; 0: its last word."""
        heard = self._heard.get(epoch)
        if heard is not None and 0 < telling < heard.telling:
            return  # it has stayed after all
        if epoch not in self._left:
            self._left[epoch] = _Farewell(self._bump(), self._clock(), telling)
        self._drop(epoch)

    def _put(self, info: ReplicaInfo) -> None:
        version, layout = self._bump(), info.layout
        self._num_of_layout[layout] += 1
        if layout not in self._layouts:
            self._layouts.put(layout, layout, version)
        known = self._replicas.get(info.epoch)
        one_for_all = self._layouts.get(layout) or layout
        self._replicas.put(info.epoch, replace(info, layout=one_for_all), version)
        if known is not None:
            self._let_go_of(known.layout, version)

    def _drop(self, epoch: Epoch) -> None:
        self._heard.pop(epoch, None)
        if epoch in self._replicas:
            version = self._bump()
            info = self._replicas.pop(epoch, version)
            assert info is not None, "it was there"
            self._let_go_of(info.layout, version)

    def _let_go_of(self, layout: KvLayout, version: int) -> None:
        self._num_of_layout[layout] -= 1
        if not self._num_of_layout[layout]:
            del self._num_of_layout[layout]
            self._layouts.pop(layout, version)

    def spare(self, epoch: Epoch, *, may_be_last: bool = False) -> str:
        """Why a replica may not leave its role; empty if it may, and then it counts as not ready,
        but as on its way to the other role: a planner that acts meanwhile may not be the one that
        asked.

        Asked here so that of two which would leave at once, one stays if they are the last, unless
        the deployment does without (`may_be_last`).
        """
        self._drop_silent()
        own = self._replicas.get(epoch)
        if own is None:
            return "the registry does not know it yet; ask again in a moment"
        others = (it for it in self._replicas if it.epoch != epoch)
        takes_over = (it.is_ready and (it.role, it.model) == (own.role, own.model) for it in others)
        if not (may_be_last or any(takes_over)):
            return (
                f"{own.replica_id} is the last {own.role} replica that takes requests; add another "
                "first"
            )
        heard = self._heard[epoch]
        self.heartbeat(replace(own, is_ready=False, is_flipping=True), heard.telling)
        self._heard[epoch].is_unsaid = True
        return ""

    def membership(self) -> Membership:
        self._look_around()
        return Membership(
            incarnation=self._incarnation,
            version=self._version,
            age_s=self._clock() - self._started_at,
            replicas=tuple(self._replicas),
            starting=tuple(self._starting.now()),
            left=tuple(self._left),
            intervals=self.intervals,
        )

    def update(self, incarnation: Epoch | None, version: int) -> MembershipUpdate:
        """The update for a watcher with that version."""
        self._look_around()
        journals = self._replicas, self._starting.journal
        is_known = incarnation == self._incarnation and version <= self._version
        is_whole = not (is_known and all(journal.remembers(version) for journal in journals))
        since = -1 if is_whole else version
        is_calm = is_whole or since == self._version
        starting = self._starting.now() if is_calm else self._starting.changed(since)
        return MembershipUpdate(
            incarnation=self._incarnation,
            version=self._version,
            age_s=self._clock() - self._started_at,
            intervals=self.intervals,
            since=None if is_whole else since,
            layouts=self._layouts.changed(since),
            replicas=self._replicas.changed(since),
            gone=() if is_whole else self._replicas.gone(since),
            starting=tuple(starting),
            no_longer_starting=() if is_whole else self._starting.journal.gone(since),
            left=tuple(epoch for epoch, it in self._left.items() if it.version > since),
        )

    @property
    def patience_s(self) -> float:
        """How long a watcher may be left without a word: a short while after news, and while
        somebody starts, for it may keep who is silent here, or show how far they are."""
        is_lively = len(self._starting) or self._clock() - self._changed_at < LIVELY_S
        return WATCH_S if is_lively else CALM_WATCH_S

    async def watch(
        self, incarnation: Epoch | None, version: int, timeout_s: float = WATCH_S
    ) -> Membership:
        """Return the membership once it differs from what the caller has, or after a while."""
        await self.until_news(incarnation, version, timeout_s)
        return self.membership()

    async def until_news(self, incarnation: Epoch | None, version: int, timeout_s: float) -> None:
        """Wait until there is news for who has that version, or for `timeout_s`."""
        self._look_around()
        if incarnation != self._incarnation:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while version == self._version:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(self._may_be_silent_in_s()):
                            await self._changed.wait()
                    self._look_around()
                if self._version != self._told_version:
                    await asyncio.sleep(self._told_at + NEWS_GAP_S - self._clock())
        if self._version != self._told_version:
            self._told_version, self._told_at = self._version, self._clock()

    def _may_be_silent_in_s(self) -> float | None:
        """Seconds until a replica may have to be dropped; None while none is known."""
        if not self._heard:
            return None
        return max(0.01, self._silence_s - self._clock())

    def _look_around(self) -> None:
        """Forget what is too old."""
        self._drop_silent()
        self._starting.drop_silent()
        now = self._clock()
        self._left = {e: it for e, it in self._left.items() if now - it.at_s <= LEFT_FOR_S}

    def _drop_silent(self) -> None:
        now = self._clock()
        if now <= self._silence_s:
            return
        for epoch in [e for e, heard in self._heard.items() if now > heard.until_s]:
            self._drop(epoch)
        self._silence_s = min((it.until_s for it in self._heard.values()), default=math.inf)

    def _bump(self) -> int:
        """The version of what is new now."""
        self._version += 1
        self._changed_at = self._clock()
        self._wake()
        return self._version

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
