"""What a gateway knows of the replicas: membership, links, load, and who has cached what.

    registry --membership--> Fleet --> DecodeLink   one a decode replica: requests and tokens
                                   --> PrefillLink  one a prefill replica: what it lends
                                   --> KvWatch      one a replica: its prefix cache, into KvIndex

The registry is a hint: its absence changes nothing, and liveness is the stream itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from math import isclose
from typing import Protocol

import grpc.aio

from baton.core.clock import Clock, monotonic
from baton.core.ids import Epoch, RequestId
from baton.core.kv_layout import KvLayout
from baton.core.messages import (
    HEARTBEAT_S,
    Capacity,
    Membership,
    Receipt,
    ReplicaInfo,
    Role,
    StartingReplica,
)
from baton.gateway.fleet.decode_link import DecodeLink
from baton.gateway.fleet.demand import rounded
from baton.gateway.fleet.fleet_report import KvKnowledge
from baton.gateway.fleet.kv_watch import KvWatch
from baton.gateway.fleet.membership import merge
from baton.gateway.fleet.prefill_link import PrefillLink
from baton.gateway.fleet.warm_up import WarmUp
from baton.proto import replica_pb2 as pb
from baton.proto.channels import Channels
from baton.router.candidate import Candidate
from baton.router.expected_blocks import Expected
from baton.router.kv_index import KvIndex
from baton.router.link_times import Pair
from baton.router.matches import Matches
from baton.router.placement import Placement
from baton.router.pool import KnownReplica, Pool
from baton.router.prompt import Prompt
from baton.router.prompt_names import PromptNames
from baton.router.pulling import PullRates, RateMeter
from baton.router.speed import MeasuredSpeed
from baton.router.view import View, look

log = logging.getLogger(__name__)

SETTLED_AFTER_S = 2 * HEARTBEAT_S + 0.5
ALIVE_FOR_S = 3.5 * HEARTBEAT_S
"""After its last word, which each replica says anew with every heartbeat."""
WATCH_TIMEOUT_S = 10.0
REGISTRY_RETRY_S = 0.5
ENOUGH_STEPS = 16
"""With prompts in them: a fit over fewer is a guess, and the pool's rate a better one."""

NEWS_OF_RATE = 0.02
"""A change of the pool's rate that is told: a smaller one would void all that was looked up."""


class RegistryClient(Protocol):
    async def watch(self, incarnation: Epoch | None, version: int) -> Membership: ...


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
        self._gateway_epoch = gateway_epoch
        self._on_change = on_change
        self._channels = channels
        self._clock = clock
        self.meter = meter or RateMeter(PullRates())
        """What fetching and computing KV cost, as the receipts say."""
        self._told_rate = self.meter.rates.tokens_per_s
        """What candidates that share it have been told."""
        self._replica_by_epoch: dict[Epoch, ReplicaInfo] = {}
        self._link_by_epoch: dict[Epoch, DecodeLink] = {}
        self._prefill_link_by_epoch: dict[Epoch, PrefillLink] = {}
        self._pool_by_role = {Role.DECODE: Pool(), Role.PREFILL: Pool()}
        self._epoch_by_request: dict[RequestId, Epoch] = {}
        self._watch_by_epoch: dict[Epoch, KvWatch] = {}
        self._drained_here: set[Epoch] = set()
        self._has_met_decode = False
        self._wanted = (0, 0)
        """Requests that wait here, and tokens: what all replicas have been told."""
        self.starting: tuple[StartingReplica, ...] = ()
        """Replicas that are on their way, as the registry last said."""
        self.index = KvIndex()
        self._matches = Matches(self.index, self._layout_of)
        self.warm_up = WarmUp(on_change, clock)

    async def follow(self, registry: RegistryClient) -> None:
        """Keep up with the registry for ever. Its absence changes nothing of what we know."""
        incarnation: Epoch | None = None
        version = -1
        while True:
            try:
                async with asyncio.timeout(WATCH_TIMEOUT_S):
                    snapshot = await registry.watch(incarnation, version)
            except Exception as error:  # whatever Ray raises while it or its head is away
                log.warning(
                    "the registry is away (%r); keeping %d replicas", error, len(self.replicas)
                )
                await asyncio.sleep(REGISTRY_RETRY_S)
                continue
            try:
                await self.apply(snapshot)
            except Exception:  # a fleet that hears of nobody any more is lost for ever
                log.exception("what the registry says cannot be followed; asking again")
                await asyncio.sleep(REGISTRY_RETRY_S)
                continue
            incarnation, version = snapshot.incarnation, snapshot.version

    async def apply(self, snapshot: Membership) -> None:
        known = merge(
            self._replica_by_epoch,
            snapshot,
            settled_after_s=SETTLED_AFTER_S,
            alive=tuple(self._alive()),
        )
        gone = {*self._watch_by_epoch, *self._link_by_epoch} - known.keys()
        self._hear_of_starts(snapshot.starting)
        self._replica_by_epoch = {epoch: info for epoch, info in known.items() if self._meet(info)}
        self.warm_up.begin(self._replica_by_epoch)
        for epoch in gone:
            self._leave(Role.PREFILL, epoch)
        for epoch in gone:
            await self._forget(epoch)
        self._on_change()

    def _alive(self) -> Iterator[Epoch]:
        """Replicas that have said something of late."""
        since = self._clock() - ALIVE_FOR_S
        yield from (e for e, link in self._link_by_epoch.items() if link.has_spoken(since))
        yield from (e for e, link in self._prefill_link_by_epoch.items() if link.has_spoken(since))

    def _learn(self, epoch: Epoch, is_all: bool) -> None:
        self.warm_up.hear(epoch, is_all=is_all)

    def _meet(self, info: ReplicaInfo) -> bool:
        """Whether it could be met: one that cannot keeps nobody from the others."""
        try:
            self._link_to(info)
        except Exception:
            log.exception("%s cannot be met at %r", info.replica_id, info.address)
            return False
        return True

    def _link_to(self, info: ReplicaInfo) -> None:
        if info.epoch not in self._watch_by_epoch:
            on_learnt = partial(self._learn, info.epoch)
            self._watch_by_epoch[info.epoch] = KvWatch(info, self.index, self._channels, on_learnt)
        on_change = partial(self._hear, info.epoch)
        if info.role is Role.PREFILL:
            if info.epoch not in self._prefill_link_by_epoch:
                link = PrefillLink(
                    info, self._gateway_epoch, on_change, self._channels, self._clock
                )
                self._prefill_link_by_epoch[info.epoch] = link
        elif info.epoch not in self._link_by_epoch:
            self._link_by_epoch[info.epoch] = DecodeLink(
                info, self._gateway_epoch, on_change, self._channels, self._clock
            )
            self._has_met_decode = True
        else:
            self._link_by_epoch[info.epoch].info = info
        self._update(info)

    def _update(self, info: ReplicaInfo) -> None:
        """The registry's word of a replica, which may be new."""
        pool = self._pool_by_role[info.role]
        replica = pool.replica(info.epoch)
        if replica is None:
            replica = KnownReplica(info, self._new_candidate(info))
            pool.join(replica)
        replica.info = info
        if not info.is_ready:
            self._drained_here.discard(info.epoch)
        link = self._link_by_epoch.get(info.epoch) or self._prefill_link_by_epoch[info.epoch]
        self._write(replica, link)

    def _new_candidate(self, info: ReplicaInfo) -> Candidate:
        """It computes at the pool's rate until it says how fast; of what only prefill replicas
        lend, it takes one prompt until it says how much."""
        credit_tokens = 0 if info.role is Role.PREFILL else None
        return Candidate(info.replica_id, self.meter, epoch=info.epoch, credit_tokens=credit_tokens)

    def _hear(self, epoch: Epoch) -> None:
        """Something has changed at a replica, or at the stream to it."""
        link = self._link_by_epoch.get(epoch) or self._prefill_link_by_epoch.get(epoch)
        replica = self._replica(epoch)
        if link is not None and link.is_connected:
            self._ask(link)  # its stream may be new
        if link is not None and link.is_draining:
            self._drained_here.discard(epoch)  # its own word is here, and so will be the next
        if link is not None and replica is not None:
            self._write(replica, link)
            if link.capacity is not None:
                self._credit(replica, link, link.capacity)
        self._on_change()

    def _write(self, replica: KnownReplica, link: DecodeLink | PrefillLink) -> None:
        """What is known of it, for placements to see."""
        replica.is_connected = link.is_connected
        if isinstance(link, PrefillLink):
            replica.is_away = link.is_away
        else:
            replica.is_connected, replica.num_open = link.answers, link.num_open
        replica.capacity = link.capacity
        replica.heard_at_s = link.last_word.heard_at_s
        self._pool_by_role[replica.info.role].write(replica)

    def _credit(
        self, replica: KnownReplica, link: DecodeLink | PrefillLink, told: Capacity
    ) -> None:
        """What it has to compute, how fast it is and what it lends, by its own word."""
        candidate, info = replica.candidate, link.info
        if isinstance(link, PrefillLink) and not link.is_connected:
            candidate.credit_tokens = 0  # others are lent it
            return
        times = told.step_times
        if times is not None and times.num_prompt_steps >= ENOUGH_STEPS:
            speed = MeasuredSpeed(times=times, max_chunk=info.max_chunk, slowness=told.slowness)
            if speed.is_sound:
                candidate.speed = speed
            else:
                link.last_word.doubt(told)
        if info.role is Role.PREFILL:
            candidate.credit_tokens = told.credit_tokens
        num_running = 0
        if isinstance(link, DecodeLink):
            num_running = max(told.num_running, link.num_open)
        candidate.hear(told.num_queued_tokens, num_running, self._clock())

    def hear(self, receipt: Receipt, pair: Pair | None) -> None:
        """Learn from the receipt of one attempt: replicas that have measured nothing themselves
        are as fast as it says. `pair`: what it was to pull between."""
        self.meter.hear(receipt, pair, self._clock())
        rate = self.meter.rates.tokens_per_s
        if not isclose(rate, self._told_rate, rel_tol=NEWS_OF_RATE):
            self._told_rate = rate
            for pool in self._pool_by_role.values():
                pool.table.hear_pace(self.meter)

    def _replica(self, epoch: Epoch) -> KnownReplica | None:
        pools = self._pool_by_role
        return pools[Role.DECODE].replica(epoch) or pools[Role.PREFILL].replica(epoch)

    def candidate(self, epoch: Epoch) -> Candidate | None:
        """What a replica has to compute; None if it is known no more."""
        replica = self._replica(epoch)
        return None if replica is None else replica.candidate

    def num_cached(self, prompt: PromptNames, epoch: Epoch) -> int:
        """How many leading tokens of a prompt a replica has."""
        return self._matches.num_tokens(prompt, epoch)

    def _layout_of(self, epoch: Epoch) -> KvLayout | None:
        info = self._replica_by_epoch.get(epoch)
        return None if info is None else info.layout

    async def _forget(self, epoch: Epoch) -> None:
        """Place nothing there any more. Liveness is the stream: what it carries may finish."""
        watch = self._watch_by_epoch.pop(epoch, None)
        if watch is not None:
            await watch.close()
        self.warm_up.hear(epoch, is_all=True)
        self.index.forget(epoch)
        self._drained_here.discard(epoch)
        prefill_link = self._prefill_link_by_epoch.pop(epoch, None)
        if prefill_link is not None:
            await prefill_link.close()
        link = self._link_by_epoch.get(epoch)
        if link is None:
            return
        if link.is_connected and link.num_open:
            link.info = replace(link.info, is_ready=False)
            self._update(link.info)
            return
        del self._link_by_epoch[epoch]
        self._leave(Role.DECODE, epoch)
        await link.close()

    def _leave(self, role: Role, epoch: Epoch) -> None:
        if epoch in self._pool_by_role[role]:
            self._pool_by_role[role].leave(epoch)

    async def close(self) -> None:
        self.warm_up.close()
        for watch in self._watch_by_epoch.values():
            await watch.close()
        for link in self._link_by_epoch.values():
            await link.close()
        for prefill_link in self._prefill_link_by_epoch.values():
            await prefill_link.close()
        self._prefill_link_by_epoch.clear()
        self._watch_by_epoch.clear()
        self._link_by_epoch.clear()

    @property
    def replicas(self) -> tuple[ReplicaInfo, ...]:
        return tuple(self._replica_by_epoch.values())

    @property
    def layouts(self) -> tuple[KvLayout, ...]:
        """Of every replica that a prompt may go to, or be found on: one of each way to name blocks,
        or two."""
        pools = self._pool_by_role
        return pools[Role.DECODE].layouts + pools[Role.PREFILL].layouts

    @property
    def connected(self) -> tuple[DecodeLink, ...]:
        return tuple(link for link in self._link_by_epoch.values() if link.is_connected)

    @property
    def lending(self) -> tuple[PrefillLink, ...]:
        """Prefill replicas that say what they lend."""
        return tuple(link for link in self._prefill_link_by_epoch.values() if link.is_connected)

    def want(self, num_requests: int, num_prefill_tokens: int = 0) -> None:
        """So many requests wait here for a place, and so many tokens for a prefill replica."""
        wanted = rounded(num_requests), rounded(num_prefill_tokens)
        if wanted != self._wanted:
            self._wanted = wanted
            for link in self._link_by_epoch.values():
                self._ask(link)
            for prefill_link in self._prefill_link_by_epoch.values():
                self._ask(prefill_link)

    def _ask(self, link: DecodeLink | PrefillLink) -> None:
        num_requests, num_prefill_tokens = self._wanted
        if isinstance(link, DecodeLink):
            link.demand.want(num_requests, 0)
        else:
            link.demand.want(0, num_prefill_tokens)

    def link(self, epoch: Epoch) -> DecodeLink:
        return self._link_by_epoch[epoch]

    def view(self, prompt: PromptNames) -> View:
        """Everybody, with what each has of the prompt."""
        pools = self._pool_by_role
        return look(prompt, self.index, pools[Role.DECODE], pools[Role.PREFILL], self.meter.rates)

    def expect(self, prompt: PromptNames, epoch: Epoch) -> Expected:
        """Count the prompt as on its way to a replica, until given back to `index.release`."""
        link = self._link_by_epoch.get(epoch)
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
            self._write(replica, self._link_by_epoch[epoch])

    def has_ended(self, request_id: RequestId, epoch: Epoch) -> None:
        """Nothing happens to a request that runs elsewhere by now."""
        if self._epoch_by_request.get(request_id) == epoch:
            del self._epoch_by_request[request_id]
            candidate = self.candidate(epoch)
            if candidate is not None:
                candidate.num_running = max(candidate.num_running - 1, 0)

    def book(self, placement: Placement, epoch: Epoch) -> None:
        """`epoch` computes the prompt of `placement`, which is on its way."""
        candidate = self.candidate(epoch)
        if candidate is not None:
            prompt = placement.prompt
            num_held = prompt.num_tokens - placement.num_prefill_tokens
            candidate.book(prompt, num_held, self._clock())
            self._await_prompts(epoch, candidate)

    def prompt_is_over(self, prompt: Prompt, epoch: Epoch, *, is_taken_back: bool = False) -> None:
        """Its first token is there, or it was taken back: whoever waits for `epoch` may go on."""
        candidate, now = self.candidate(epoch), self._clock()
        if candidate is None:
            return
        if candidate.finished(prompt, now, is_taken_back=is_taken_back) is not None:
            self._await_prompts(epoch, candidate)
            self._on_change()

    def _await_prompts(self, epoch: Epoch, candidate: Candidate) -> None:
        link = self._prefill_link_by_epoch.get(epoch)
        if link is not None:
            link.await_prompts(len(candidate.open))

    async def inspect(self, timeout_s: float = 2.0) -> dict[Epoch, pb.InspectReply | Exception]:
        """Ask every replica for its books, all at once."""
        watches = dict(self._watch_by_epoch)
        replies = await asyncio.gather(
            *(watch.inspect(timeout_s) for watch in watches.values()), return_exceptions=True
        )
        return {
            epoch: reply
            for epoch, reply in zip(watches, replies, strict=True)
            if not isinstance(reply, BaseException) or isinstance(reply, Exception)
        }

    async def drain(self, epoch: Epoch, timeout_s: float = 2.0) -> int:
        """Tell a replica to become empty; how many requests it still has. Raises AioRpcError."""
        with self._drained_from_now_on(epoch):
            return await self._watch_by_epoch[epoch].drain(timeout_s)

    async def undrain(self, epoch: Epoch, timeout_s: float = 2.0) -> int:
        """Tell a replica to take requests again. Raises AioRpcError."""
        num_open = await self._watch_by_epoch[epoch].undrain(timeout_s)
        self._drained_here.discard(epoch)
        return num_open

    async def flip(self, epoch: Epoch, role: Role, timeout_s: float = 4.0) -> int:
        """Tell a replica to take a role; how many requests it still has. Raises AioRpcError."""
        watch = self._watch_by_epoch[epoch]
        if role is not self._replica_by_epoch[epoch].role:
            with self._drained_from_now_on(epoch):
                return await watch.flip(role, timeout_s)
        num_open = await watch.flip(role, timeout_s)
        self._drained_here.discard(epoch)
        return num_open

    @contextmanager
    def _drained_from_now_on(self, epoch: Epoch) -> Iterator[None]:
        """Unless it cannot be told. Its own word, if it is not here yet, takes a moment."""
        link = self._link_by_epoch.get(epoch) or self._prefill_link_by_epoch.get(epoch)
        is_news = epoch not in self._drained_here and not (link is not None and link.is_draining)
        if is_news:
            self._drained_here.add(epoch)
        try:
            yield
        except grpc.aio.AioRpcError:
            if is_news:
                self._drained_here.discard(epoch)
            raise

    @property
    def decode_places(self) -> tuple[int, int]:
        """How many requests the decode replicas that take some would have of this gateway, and how
        many they have."""
        pool, num_places, num_taken = self._pool_by_role[Role.DECODE], 0, 0
        for epoch in self.open_decode:
            replica = pool.replica(epoch)
            if replica is not None:
                num_places += replica.max_open
                num_taken += replica.num_open
        return num_places, num_taken

    @property
    def open_decode(self) -> Iterator[Epoch]:
        """Decode replicas that are there and take requests."""
        for epoch, link in self._link_by_epoch.items():
            is_open = link.info.is_ready and link.answers and not link.is_draining
            if is_open and epoch not in self._drained_here:
                yield epoch

    def _hear_of_starts(self, starting: tuple[StartingReplica, ...]) -> None:
        before = {one.replica_id for one in self.starting if one.failure}
        self.starting = starting
        for one in starting:
            is_news = one.failure and one.replica_id not in before
            if is_news and self._has_met_decode:  # before, `baton serve` itself says so
                log.error("%s failed while %s: %s", one.replica_id, one.stage, one.failure)

    def trouble_by_replica(self) -> dict[ReplicaInfo, str]:
        """Why each replica takes nothing; empty for those that do."""
        is_open = set(self.open_decode)
        return {
            info: "" if epoch in is_open else self._trouble(info)
            for epoch, info in self._replica_by_epoch.items()
        }

    def _trouble(self, info: ReplicaInfo) -> str:
        epoch = info.epoch
        link = self._link_by_epoch.get(epoch) or self._prefill_link_by_epoch.get(epoch)
        says_so = link is not None and link.is_connected and link.is_draining
        if says_so or not info.is_ready or epoch in self._drained_here:
            return "draining"
        if link is None or isinstance(link, PrefillLink):
            return ""  # decode replicas talk to it
        return "it answers nobody" if link.is_connected else "no connection"

    def kv_knowledge(self) -> dict[Epoch, KvKnowledge]:
        """By replica: what the index knows of its cache, and how well it could follow."""
        return {
            epoch: KvKnowledge(
                num_blocks=self.index.num_blocks(epoch),
                num_events=watch.num_events,
                num_gaps=watch.num_gaps,
                num_resyncs=watch.num_resyncs,
                is_synced=watch.is_synced,
            )
            for epoch, watch in self._watch_by_epoch.items()
        }
