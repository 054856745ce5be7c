"""A gateway's knowledge of the replicas: membership, links, load and cached blocks.

    registry --membership--> Fleet --> Links    streams: requests, tokens, credits, cached blocks
                                   --> Pool     one a role: what placements see
                                   --> KvIndex  which replica has which blocks

The registry is only a hint: if it is away, nothing changes. A replica is alive while its stream is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from math import isclose

from baton.core.clock import Clock, monotonic
from baton.core.ids import Epoch, RequestId
from baton.core.kv_layout import KvLayout
from baton.core.messages import Receipt
from baton.core.replicas import (
    Capacity,
    Membership,
    ReplicaInfo,
    ReportIntervals,
    Role,
    StartingReplica,
)
from baton.gateway.fleet.decode_link import DecodeLink
from baton.gateway.fleet.failed_starts import FailedStarts
from baton.gateway.fleet.links import Links
from baton.gateway.fleet.membership import merge
from baton.gateway.fleet.prefill_link import PrefillLink
from baton.gateway.fleet.replica_commands import ReplicaCommands
from baton.gateway.fleet.replica_link import Listener
from baton.gateway.fleet.warm_up import WarmUp
from baton.proto.channels import Channels
from baton.router.cache.expected_blocks import Expected
from baton.router.cache.kv_index import KvIndex
from baton.router.cache.matches import Lookup, Matches
from baton.router.cache.prompt_names import PromptNames
from baton.router.cache.pulling import PullRates, RateMeter
from baton.router.placement import Placement
from baton.router.prompt import Prompt
from baton.router.replicas.candidate import Candidate
from baton.router.replicas.pool import KnownReplica, Pool
from baton.router.replicas.view import View, look
from baton.router.speeds.link_times import Pair
from baton.router.speeds.speed import MeasuredSpeed

log = logging.getLogger(__name__)

ENOUGH_STEPS = 16
"""Steps with prompts in them that a fit of a replica's rate needs; with fewer, the pool's rate is
used."""

MET_AT_ONCE = 16
"""Replicas that are met, or leave, in one go; requests are served in between."""

NEWS_OF_RATE = 0.02
"""The least relative change of the pool's rate that is passed on, since each one invalidates cached
lookups."""


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
        self._clock = clock
        self.meter = meter or RateMeter(PullRates())
        """The cost of fetching and of computing KV, measured from receipts."""
        self._told_rate = self.meter.rates.tokens_per_s
        """The rate last passed on to the candidates that use the pool's rate."""
        self._replica_by_epoch: dict[Epoch, ReplicaInfo] = {}
        self._intervals = ReportIntervals()
        """The interval at which each replica reports to the registry, or to its predecessor."""
        self._pool_by_role = {Role.DECODE: Pool(), Role.PREFILL: Pool()}
        self._epoch_by_request: dict[RequestId, Epoch] = {}
        self.starting: tuple[StartingReplica, ...] = ()
        """Replicas that are starting, by the registry's last snapshot."""
        self.index = KvIndex()
        self.failed_starts = FailedStarts(clock)
        self.links = Links(
            gateway_epoch, self.index, channels, clock, lambda: self.warm_up.is_under_way
        )
        self.orders = ReplicaCommands(self.links, self._place_as_told, clock)
        self._matches = Matches(self.index, self._layout_of)
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
        self._hear_of_starts(snapshot.starting)
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
            self._leave(Role.PREFILL, epoch)
            if number % MET_AT_ONCE == 0:
                await asyncio.sleep(0)
        met = self._replica_by_epoch
        self._replica_by_epoch = {epoch: met[epoch] for epoch in known if epoch in met}
        for epoch in gone:
            await self._forget(epoch)
        self._on_change()

    def _learn(self, epoch: Epoch, is_all: bool) -> None:
        self.warm_up.hear(epoch, is_all=is_all)

    def _meet(self, info: ReplicaInfo) -> bool:
        """Connect to a replica; return whether that worked. A failure does not affect the
        others."""
        epoch = info.epoch
        try:
            listener = Listener(partial(self._hear, epoch), partial(self._hear_again, epoch))
            self.links.meet(info, listener, partial(self._learn, epoch))
            self._update(info)
        except Exception:
            log.exception("%s cannot be met at %r", info.replica_id, info.address)
            return False
        return True

    def _update(self, info: ReplicaInfo) -> None:
        """Take in the registry's entry of a replica, which may be new."""
        pool = self._pool_by_role[info.role]
        replica = pool.replica(info.epoch)
        if replica is None:
            replica = KnownReplica(info, self._new_candidate(info))
            pool.join(replica)
        replica.info = info
        if not info.is_ready:
            self.orders.forget(info.epoch)
        self._write(replica, self.links[info.epoch])

    def _new_candidate(self, info: ReplicaInfo) -> Candidate:
        """Until it reports, it computes at the pool's rate and has a credit of one prompt."""
        credit_tokens = 0 if info.role is Role.PREFILL else None
        return Candidate(info.replica_id, self.meter, epoch=info.epoch, credit_tokens=credit_tokens)

    def _hear(self, epoch: Epoch) -> None:
        """Take in a change of a replica, or of the stream to it."""
        link = self.links.get(epoch)
        replica = self._replica(epoch)
        if link is not None and link.is_connected:
            self.links.ask(link)  # its stream may be new
        elif link is not None:
            self.warm_up.lose(epoch)
        if link is not None:
            self.orders.hear(epoch, link.capacity_report)
        if link is not None and replica is not None:
            if link.is_connected and not replica.is_connected:
                self.warm_up.go_on()
            self._write(replica, link)
            if link.capacity is not None:
                self._credit(replica, link, link.capacity)
        self._on_change()

    def _hear_again(self, epoch: Epoch) -> None:
        """Take in a repeated report of an idle replica."""
        link, replica = self.links.get(epoch), self._replica(epoch)
        if link is None or replica is None or replica.candidate.num_running or epoch in self.orders:
            self._hear(epoch)  # its report contradicts what is booked here
        else:
            replica.heard_at_s = link.capacity_report.heard_at_s

    def _write(self, replica: KnownReplica, link: DecodeLink | PrefillLink) -> None:
        """Update the replica's candidate, which placements read."""
        replica.is_connected = link.is_connected
        replica.is_told_to_drain = replica.info.epoch in self.orders
        if isinstance(link, PrefillLink):
            replica.is_away = link.is_away
        else:
            replica.is_connected, replica.num_open = link.answers, link.num_open
        replica.capacity = link.capacity
        replica.heard_at_s = link.capacity_report.heard_at_s
        self._pool_by_role[replica.info.role].write(replica)

    def _credit(
        self, replica: KnownReplica, link: DecodeLink | PrefillLink, told: Capacity
    ) -> None:
        """Update its queue, its speed and its credit from its own report."""
        candidate, info = replica.candidate, link.info
        if isinstance(link, PrefillLink) and not link.is_connected:
            candidate.credit_tokens = 0  # others are lent it
            return
        times = told.step_times
        if times is not None and times.num_prompt_steps >= ENOUGH_STEPS:
            speed = MeasuredSpeed(times=times, max_chunk=info.max_chunk, slowness=told.slowness)
            if speed != candidate.speed:
                if speed.is_sound:
                    candidate.speed = speed
                else:
                    link.capacity_report.doubt(told)
        if info.role is Role.PREFILL:
            candidate.credit_tokens = told.credit_tokens
        num_running = 0
        if isinstance(link, DecodeLink):
            num_running = max(told.num_running, link.num_open)
        candidate.hear(told.num_queued_tokens, num_running, self._clock())

    def hear(self, receipt: Receipt, pair: Pair | None, handed_off: Pair | None = None) -> None:
        """Learn from the receipt of one attempt, which sets the speed of replicas that have
        measured none. `pair`: lender and taker of a pull; `handed_off`: prefill and decode replica
        of a handoff."""
        self.meter.hear(receipt, pair, self._clock(), handed_off)
        rate = self.meter.rates.tokens_per_s
        if not isclose(rate, self._told_rate, rel_tol=NEWS_OF_RATE):
            self._told_rate = rate
            for pool in self._pool_by_role.values():
                pool.table.hear_pace(self.meter)

    def _replica(self, epoch: Epoch) -> KnownReplica | None:
        pools = self._pool_by_role
        return pools[Role.DECODE].replica(epoch) or pools[Role.PREFILL].replica(epoch)

    def candidate(self, epoch: Epoch) -> Candidate | None:
        """The candidate of a replica; None if it has left."""
        replica = self._replica(epoch)
        return None if replica is None else replica.candidate

    def num_cached(self, prompts: Sequence[PromptNames], epoch: Epoch) -> list[int]:
        """How many leading tokens of each prompt a replica has."""
        return self._matches.num_tokens(prompts, epoch)

    def lookup(self, epoch: Epoch) -> Lookup | None:
        """The handle by which compiled code looks prompts up in a replica's cache, if it can."""
        return self._matches.lookup(epoch)

    def _layout_of(self, epoch: Epoch) -> KvLayout | None:
        info = self._replica_by_epoch.get(epoch)
        return None if info is None else info.layout

    async def _forget(self, epoch: Epoch) -> None:
        """Place nothing there any more. Requests on its stream may finish."""
        await self.links.close_watch(epoch)
        self.warm_up.hear(epoch, is_all=True)
        self.index.forget(epoch)
        self.orders.forget(epoch)
        await self.links.close_prefill(epoch)
        link = self.links.decode.get(epoch)
        if link is None:
            return
        if link.is_connected and link.num_open:
            link.info = replace(link.info, is_ready=False)
            self._update(link.info)
            return
        del self.links.decode[epoch]
        self._leave(Role.DECODE, epoch)
        await link.close()

    def _leave(self, role: Role, epoch: Epoch) -> None:
        if epoch in self._pool_by_role[role]:
            self._pool_by_role[role].leave(epoch)

    async def close(self) -> None:
        self.warm_up.close()
        await self.links.close()

    @property
    def replicas(self) -> tuple[ReplicaInfo, ...]:
        return tuple(self._replica_by_epoch.values())

    @property
    def layouts(self) -> tuple[KvLayout, ...]:
        """KV layouts of all replicas that may compute a prompt or have it cached: one or two for
        each way of hashing blocks."""
        pools = self._pool_by_role
        return pools[Role.DECODE].layouts + pools[Role.PREFILL].layouts

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
        pools = self._pool_by_role
        return look(prompt, self.index, pools[Role.DECODE], pools[Role.PREFILL], self.meter.rates)

    def expect(self, prompt: PromptNames, epoch: Epoch) -> Expected:
        """Count the prompt as on its way to a replica, until given back to `index.release`."""
        link = self.links.decode.get(epoch)
        info = link.info if link is not None else self._replica_by_epoch[epoch]
        return self.index.expect(prompt.under(info.layout), epoch)

    def where_runs(self, request_id: RequestId | None) -> Epoch | None:
        """The decode replica of a request of this gateway; None if it does not run."""
        return None if request_id is None else self._epoch_by_request.get(request_id)

    def has_started(self, request_id: RequestId, epoch: Epoch) -> None:
        self._epoch_by_request[request_id] = epoch
        replica = self._replica(epoch)
        if replica is not None:
            replica.candidate.num_running += 1
            self._write(replica, self.links.decode[epoch])

    def has_ended(self, request_id: RequestId, epoch: Epoch) -> None:
        """Forget where a request ran, unless it runs on another replica by now."""
        if self._epoch_by_request.get(request_id) == epoch:
            del self._epoch_by_request[request_id]
            candidate = self.candidate(epoch)
            if candidate is not None:
                candidate.num_running = max(candidate.num_running - 1, 0)

    def book(self, placement: Placement, epoch: Epoch) -> None:
        """Count the prompt of `placement` as work of `epoch`."""
        candidate = self.candidate(epoch)
        if candidate is not None:
            prompt = placement.prompt
            num_held = prompt.num_tokens - placement.num_prefill_tokens
            candidate.book(prompt, num_held, self._clock())
            self._await_prompts(epoch, candidate)

    def prompt_is_over(self, prompt: Prompt, epoch: Epoch, *, is_taken_back: bool = False) -> None:
        """The prompt is computed, or cancelled: stop counting it, and serve prompts that wait for
        `epoch`."""
        candidate, now = self.candidate(epoch), self._clock()
        if candidate is None:
            return
        if candidate.finished(prompt, now, is_taken_back=is_taken_back) is not None:
            self._await_prompts(epoch, candidate)
            self._on_change()

    def _await_prompts(self, epoch: Epoch, candidate: Candidate) -> None:
        link = self.links.prefill.get(epoch)
        if link is not None:
            link.await_prompts(len(candidate.open))

    def _place_as_told(self, epoch: Epoch) -> None:
        """Stop placing on a replica that is told to drain, or resume when it reports that it
        accepts."""
        link, replica = self.links.get(epoch), self._replica(epoch)
        if link is not None and replica is not None:
            self._write(replica, link)
        self._on_change()

    @property
    def decode_places(self) -> tuple[int, int]:
        """The credit of this gateway at all accepting decode replicas, and how much of it is
        used."""
        pool, num_places, num_taken = self._pool_by_role[Role.DECODE], 0, 0
        for epoch in self.open_decode:
            replica = pool.replica(epoch)
            if replica is not None:
                num_places += replica.max_open
                num_taken += replica.num_open
        return num_places, num_taken

    @property
    def takes_requests(self) -> bool:
        """Whether any decode replica accepts requests. Called on each report of each replica."""
        return self._pool_by_role[Role.DECODE].num_taking > 0

    @property
    def open_decode(self) -> Iterator[Epoch]:
        """Decode replicas that are connected and accept requests."""
        for epoch, link in self.links.decode.items():
            is_open = link.info.is_ready and link.answers and not link.is_draining
            if is_open and epoch not in self.orders:
                yield epoch

    def _hear_of_starts(self, starting: tuple[StartingReplica, ...]) -> None:
        known = {one.replica_id for one in self.starting if one.failure}
        failed = [one for one in starting if one.failure and one.replica_id not in known]
        self.failed_starts.hear(failed, self.starting or starting)
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
        if says_so or not info.is_ready or epoch in self.orders:
            return "draining"
        if link is None or isinstance(link, PrefillLink):
            return ""  # decode replicas talk to it
        return "it answers nobody" if link.is_connected else "no connection"


def _in_turns(known: Mapping[Epoch, ReplicaInfo]) -> Iterator[tuple[Epoch, ReplicaInfo]]:
    """Roles in alternation, so that a gateway that has met half of a thousand replicas can place
    already."""
    of_role = ([it for it in known.items() if it[1].role is role] for role in Role)
    return (it for met in zip_longest(*of_role) for it in met if it is not None)
