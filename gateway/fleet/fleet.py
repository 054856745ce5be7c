"""A gateway's knowledge of the replicas: membership, links, load and cached blocks.

    registry --membership--> Fleet --> Links         streams: requests, tokens, credits, blocks
                                   --> ReplicaLoads  what runs and is booked on each replica
                                   --> KvIndex       which replica has which blocks

The registry is only a hint: if it is away, nothing changes. A replica is alive while its stream is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import zip_longest

from baton.core.clock import Clock, monotonic
from baton.core.ids import Epoch
from baton.core.kv_layout import KvLayout
from baton.core.replicas import (
    Membership,
    ReplicaInfo,
    ReportIntervals,
    Role,
    StartingReplica,
)
from baton.gateway.fleet.links.decode_link import DecodeLink
from baton.gateway.fleet.links.links import Links
from baton.gateway.fleet.links.prefill_link import PrefillLink
from baton.gateway.fleet.links.replica_commands import ReplicaCommands
from baton.gateway.fleet.links.replica_link import Listener
from baton.gateway.fleet.membership.failed_starts import FailedStarts
from baton.gateway.fleet.membership.membership import merge
from baton.gateway.fleet.membership.warm_up import WarmUp
from baton.gateway.fleet.replica_loads import ReplicaLoads
from baton.proto.channels import Channels
from baton.router.cache.expected_blocks import Expected
from baton.router.cache.kv_index import KvIndex
from baton.router.cache.matches import Matches
from baton.router.cache.prompt_names import PromptNames
from baton.router.cache.pulling import PullRates, RateMeter
from baton.router.replicas.view import View, look

log = logging.getLogger(__name__)

MET_AT_ONCE = 16
"""Replicas that are met, or leave, in one go; requests are served in between."""


class Fleet:
    """`on_change` is called whenever a request that had to wait might now be placed."""

    def __init__(
        self,
        gateway_epoch: Epoch,
        on_change: Callable[[], None],
        channels: Channels,
        meter: RateMeter | None = None,
        clock: Clock = monotonic,
    ) -> None:
        self._on_change = on_change
        self._replica_by_epoch: dict[Epoch, ReplicaInfo] = {}
        self._intervals = ReportIntervals()
        """The interval at which each replica reports to the registry, or to its predecessor."""
        self.starting: tuple[StartingReplica, ...] = ()
        """Replicas that are starting, by the registry's last snapshot."""
        self.index = KvIndex()
        self.failed_starts = FailedStarts(clock)
        self.links = Links(
            gateway_epoch, self.index, channels, clock, lambda: self.warm_up.is_under_way
        )
        self.commands = ReplicaCommands(self.links, self._apply_drain_order, clock)
        meter = meter or RateMeter(PullRates())
        self.loads = ReplicaLoads(self.links, self.commands, meter, on_change, clock)
        self.matches = Matches(self.index, self._layout_of)
        self.warm_up = WarmUp(on_change, clock, lambda: self.links.is_any_held_up)

    async def apply(self, snapshot: Membership) -> None:
        """Meet the replicas that are new in the snapshot, and leave those that are gone."""
        # A new registry knows few replicas, which report often; those of the old one report more
        # seldom.
        slowest = max(self._intervals, snapshot.intervals, key=lambda intervals: intervals.beat_s)
        settled_s = slowest.settled_after_s
        self._intervals = snapshot.intervals if snapshot.age_s >= settled_s else slowest
        alive = tuple(self.links.alive())
        known = merge(self._replica_by_epoch, snapshot, settled_after_s=settled_s, alive=alive)
        gone = {*self.links.watches, *self.links.decode} - known.keys()
        self._observe_starts(snapshot.starting)
        self.warm_up.begin(known, are_all=snapshot.age_s >= settled_s)
        for number, (epoch, info) in enumerate(_in_turns(known), start=1):
            if self._meet(info):
                self._replica_by_epoch[epoch] = info
            else:
                self._replica_by_epoch.pop(epoch, None)
                self._learn(epoch, is_all=True)
            if number % MET_AT_ONCE == 0:
                await asyncio.sleep(0)
                self.warm_up.go_on()
        for number, epoch in enumerate(gone, start=1):
            self.loads.leave(Role.PREFILL, epoch)
            if number % MET_AT_ONCE == 0:
                await asyncio.sleep(0)
        met = self._replica_by_epoch
        self._replica_by_epoch = {epoch: met[epoch] for epoch in known if epoch in met}
        for epoch in gone:
            await self._forget(epoch)
        self._on_change()

    def _learn(self, epoch: Epoch, is_all: bool) -> None:
        self.warm_up.observe(epoch, is_all=is_all)

    def _meet(self, info: ReplicaInfo) -> bool:
        """Connect to a replica; return whether that worked. A failure does not affect the
        others."""
        epoch = info.epoch
        try:
            listener = Listener(
                partial(self._on_replica_change, epoch), partial(self._on_repeated_report, epoch)
            )
            self.links.meet(info, listener, partial(self._learn, epoch))
            self._take_in(info)
        except Exception:
            log.exception("%s cannot be connected to at %r", info.replica_id, info.address)
            return False
        return True

    def _take_in(self, info: ReplicaInfo) -> None:
        """Take in the registry's entry of a replica, which may be new."""
        if not info.is_ready:
            self.commands.forget(info.epoch)
        self.loads.meet(info)

    def _on_replica_change(self, epoch: Epoch) -> None:
        """Take in a change of a replica, or of the stream to it."""
        link, replica = self.links.get(epoch), self.loads.replica(epoch)
        if link is not None:
            if link.is_connected:
                self.links.ask(link)  # its stream may be new
            else:
                self.warm_up.lose(epoch)
            self.commands.observe(epoch, link.capacity_report)
            if link.is_connected and replica is not None and not replica.is_connected:
                self.warm_up.go_on()
            self.loads.observe(epoch)
        self._on_change()

    def _on_repeated_report(self, epoch: Epoch) -> None:
        """Take in a repeated report of an idle replica."""
        if not self.loads.observe_again(epoch):
            self._on_replica_change(epoch)

    def _layout_of(self, epoch: Epoch) -> KvLayout | None:
        info = self._replica_by_epoch.get(epoch)
        return None if info is None else info.layout

    async def _forget(self, epoch: Epoch) -> None:
        """Place nothing there any more. Requests on its stream may finish."""
        await self.links.close_watch(epoch)
        self.warm_up.observe(epoch, is_all=True)
        self.index.forget(epoch)
        self.commands.forget(epoch)
        await self.links.close_prefill(epoch)
        link = self.links.decode.get(epoch)
        if link is None:
            return
        if link.is_connected and link.num_open:
            link.info = replace(link.info, is_ready=False)
            self._take_in(link.info)
            return
        del self.links.decode[epoch]
        self.loads.leave(Role.DECODE, epoch)
        await link.close()

    async def close(self) -> None:
        self.warm_up.close()
        await self.links.close()

    @property
    def replicas(self) -> tuple[ReplicaInfo, ...]:
        return tuple(self._replica_by_epoch.values())

    @property
    def connected(self) -> tuple[DecodeLink, ...]:
        return tuple(link for link in self.links.decode.values() if link.is_connected)

    @property
    def lending(self) -> tuple[PrefillLink, ...]:
        """Prefill replicas that report credits."""
        return tuple(link for link in self.links.prefill.values() if link.is_connected)

    def link(self, epoch: Epoch) -> DecodeLink:
        return self.links.decode[epoch]

    def view(self, prompt: PromptNames) -> View:
        """All replicas, each with what it has cached of the prompt."""
        decode, prefill = self.loads.pool(Role.DECODE), self.loads.pool(Role.PREFILL)
        return look(prompt, self.index, decode, prefill, self.loads.meter.rates)

    def expect(self, prompt: PromptNames, epoch: Epoch) -> Expected:
        """Count the prompt as on its way to a replica, until given back to `index.release`."""
        link = self.links.decode.get(epoch)
        info = link.info if link is not None else self._replica_by_epoch[epoch]
        return self.index.expect(prompt.under(info.layout), epoch)

    def _apply_drain_order(self, epoch: Epoch) -> None:
        """Stop placing on a replica that is ordered to drain, or resume when it reports that it
        accepts."""
        self.loads.apply_drain(epoch)
        self._on_change()

    @property
    def decode_places(self) -> tuple[int, int]:
        """The credit of this gateway at all accepting decode replicas, and how much of it is
        used."""
        pool, num_places, num_taken = self.loads.pool(Role.DECODE), 0, 0
        for epoch in self.open_decode:
            replica = pool.replica(epoch)
            if replica is not None:
                num_places += replica.max_open
                num_taken += replica.num_open
        return num_places, num_taken

    @property
    def takes_requests(self) -> bool:
        """Whether any decode replica accepts requests. Called on each report of each replica."""
        return self.loads.pool(Role.DECODE).num_taking > 0

    @property
    def open_decode(self) -> Iterator[Epoch]:
        """Decode replicas that are connected and accept requests."""
        for epoch, link in self.links.decode.items():
            is_open = link.info.is_ready and link.answers and not link.is_draining
            if is_open and epoch not in self.commands:
                yield epoch

    def _observe_starts(self, starting: tuple[StartingReplica, ...]) -> None:
        known = {one.replica_id for one in self.starting if one.failure}
        failed = [one for one in starting if one.failure and one.replica_id not in known]
        self.failed_starts.observe(failed, self.starting or starting)
        self.starting = starting
        if self.links.has_met_decode:  # before, `baton serve` itself says so
            for one in failed:
                log.error("%s failed while %s: %s", one.replica_id, one.stage, one.failure)

    def trouble_by_replica(self) -> dict[ReplicaInfo, str]:
        """Why each replica accepts nothing; empty for those that do."""
        is_open = set(self.open_decode)
        return {
            info: "" if epoch in is_open else self._trouble(info)
            for epoch, info in self._replica_by_epoch.items()
        }

    def _trouble(self, info: ReplicaInfo) -> str:
        epoch = info.epoch
        link = self.links.get(epoch)
        says_so = link is not None and link.is_connected and link.is_draining
        if says_so or not info.is_ready or epoch in self.commands:
            return "draining"
        if link is None or isinstance(link, PrefillLink):
            return ""  # decode replicas talk to it
        return "it answers nobody" if link.is_connected else "no connection"


def _in_turns(known: Mapping[Epoch, ReplicaInfo]) -> Iterator[tuple[Epoch, ReplicaInfo]]:
    """Roles in alternation, so that a gateway that has met half of a thousand replicas can place
    already."""
    of_role = ([it for it in known.items() if it[1].role is role] for role in Role)
    return (it for met in zip_longest(*of_role) for it in met if it is not None)
