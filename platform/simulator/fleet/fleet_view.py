"""A simulated gateway's view of its replicas: their reports, and what it has sent them.

    observe, on_kv_events --> links, candidates, index --> view
    sent, got_first_token, ended                      --> bookings, blocks being transferred

`baton.gateway.fleet.fleet` handles the reports of replicas in a live gateway; here the same is done
to values, without streams.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from baton.core.ids import Epoch
from baton.core.kv_events import KvEvents
from baton.core.replicas import Capacity, Demand, ReplicaInfo, Role
from baton.platform.simulator.fleet.event_queue import EventQueue
from baton.platform.simulator.fleet.setup import FleetSetup, Part
from baton.platform.simulator.fleet.turns import Turn
from baton.router.cache.expected_blocks import Expected
from baton.router.cache.kv_index import KvIndex
from baton.router.cache.matches import Matches
from baton.router.cache.prompt_names import PromptNames
from baton.router.cache.pulling import PullRates
from baton.router.placement import Placement
from baton.router.replicas.candidate import Candidate, Speed
from baton.router.replicas.pool import KnownReplica, Pool
from baton.router.replicas.view import View, look


class Replica(Protocol):
    @property
    def info(self) -> ReplicaInfo: ...

    def observe(self, gateway: int, demand: Demand) -> None: ...


@dataclass(slots=True, eq=False)
class _Link:
    """The state of one replica, as the gateway knows it."""

    replica: Replica
    known: KnownReplica
    wanted: Demand = field(default_factory=Demand)

    @property
    def info(self) -> ReplicaInfo:
        return self.replica.info

    @property
    def candidate(self) -> Candidate:
        return self.known.candidate


@dataclass(slots=True)
class _Booked:
    """The bookings of a sent request, to be undone later."""

    placement: Placement
    computes: Epoch
    on_decode: Expected
    on_prefill: Expected | None


class FleetView:
    def __init__(
        self,
        number: int,
        setup: FleetSetup,
        event_queue: EventQueue,
        speeds: Mapping[Role, Speed],
        rates: PullRates,
    ) -> None:
        """`number`: of the gateway. `speeds`: what it believes of replicas of each role."""
        self._number = number
        self._setup = setup
        self._event_queue = event_queue
        self._speeds = speeds
        self._rates = rates
        self._links: dict[Epoch, _Link] = {}
        self._index = KvIndex()
        self._pool_by_role = {Role.PREFILL: Pool(), Role.DECODE: Pool()}
        matches = Matches(self._index, lambda epoch: self._links[epoch].info.layout)
        self.num_cached, self.lookup = matches.num_tokens, matches.lookup
        """Cached prompt tokens per replica, for the placer; and how it looks them up."""
        self._booked: dict[str, _Booked] = {}
        """Bookings by request id."""

    def meet(self, replica: Replica) -> None:
        info = replica.info
        credit_tokens = 0 if info.role is Role.PREFILL else None
        speed = self._speeds[info.role]
        candidate = Candidate(info.replica_id, speed, epoch=info.epoch, credit_tokens=credit_tokens)
        known = KnownReplica(info, candidate)
        known.is_connected = True
        self._pool_by_role[info.role].join(known)
        self._links[info.epoch] = _Link(replica, known)

    def forget(self, epoch: Epoch) -> None:
        """Nothing of ours is there any more."""
        link = self._links.pop(epoch)
        self._pool_by_role[link.info.role].leave(epoch)
        self._index.forget(epoch)

    # Reports of replicas.

    def observe(self, epoch: Epoch, capacity: Capacity) -> None:
        link = self._links.get(epoch)
        if link is None:
            return  # its last words: it is gone
        is_told = Part.GOSSIP not in self._setup.without
        link.known.capacity, candidate = capacity if is_told else _own(capacity), link.candidate
        self._write(link)
        num_running = 0
        if link.info.role is Role.PREFILL:
            candidate.credit_tokens = capacity.credit_tokens
        else:
            num_running = max(capacity.num_running, link.known.num_open)
        if is_told:
            candidate.observe(capacity.num_queued_tokens, num_running, self._event_queue.now)
        self._demand(link, link.wanted.num_requests, link.wanted.num_tokens)

    def on_kv_events(self, epoch: Epoch, events: KvEvents) -> None:
        if epoch in self._links:
            self._index.apply(epoch, events)

    # Events of requests.

    def sent(self, turn: Turn, placement: Placement) -> None:
        decode = placement.decode.epoch
        computes = placement.prefill[0].epoch if placement.prefill else decode
        link = self._links[decode]
        link.known.num_open += 1
        self._write(link)
        link.candidate.num_running += 1
        self._booked[turn.request_id] = _Booked(
            placement,
            computes,
            self._expect(turn, decode),
            self._expect(turn, computes) if placement.prefill else None,
        )
        prompt = placement.prompt
        num_held = prompt.num_tokens - placement.num_prefill_tokens
        self._links[computes].candidate.book(prompt, num_held, self._event_queue.now)

    def got_first_token(self, turn: Turn) -> None:
        booked = self._booked[turn.request_id]
        if booked.on_prefill is not None:
            self._index.release(booked.on_prefill)
        candidate = self._links[booked.computes].candidate
        candidate.finished(booked.placement.prompt, self._event_queue.now)

    def ended(self, turn: Turn) -> None:
        booked = self._booked.pop(turn.request_id)
        self._index.release(booked.on_decode)
        link = self._links[booked.placement.decode.epoch]
        link.known.num_open -= 1
        self._write(link)
        link.candidate.num_running = max(link.candidate.num_running - 1, 0)

    def _expect(self, turn: Turn, epoch: Epoch) -> Expected:
        return self._index.expect(turn.names.under(self._links[epoch].info.layout), epoch)

    # Queries of the placer.

    def view(self, names: PromptNames) -> View:
        pools = self._pool_by_role
        return look(names, self._index, pools[Role.DECODE], pools[Role.PREFILL], self._rates)

    def _write(self, link: _Link) -> None:
        self._pool_by_role[link.info.role].write(link.known)

    # Demand reported to replicas.

    def want(self, num_requests: int, num_tokens: int) -> None:
        for link in self._links.values():
            if link.info.role is Role.PREFILL:
                self._demand(link, 0, _rounded(num_tokens))
            else:
                self._demand(link, _rounded(num_requests), 0)

    def _demand(self, link: _Link, num_requests: int, num_tokens: int) -> None:
        told = link.known.capacity
        credit_id = 0 if told is None else told.credit_id
        wanted = Demand(num_requests=num_requests, num_tokens=num_tokens, credit_id=credit_id)
        if wanted != link.wanted:
            link.wanted = wanted
            heard = partial(link.replica.observe, self._number, wanted)
            self._event_queue.after(self._setup.links.latency_s, heard)


def _own(told: Capacity) -> Capacity:
    """The capacity without what the replica has to do for other gateways."""
    return replace(told, num_running=0, num_waiting=0, num_queued_tokens=0, num_context_tokens=0)


def _rounded(number: int) -> int:
    """Up to a power of two, so that a line of changing length is seldom news."""
    return 1 << (number - 1).bit_length() if number else 0


def pull_rates(setup: FleetSetup) -> PullRates:
    """Costs of fetching and computing KV, as gateways of this fleet know them."""
    device = setup.prefill if setup.num_prefill else setup.decode
    chunk = device.scheduler.max_chunk
    return PullRates(
        is_enabled=Part.PULLS not in setup.without,
        latency_s=setup.links.latency_s,
        bytes_per_s=setup.links.bytes_per_s,
        tokens_per_s=chunk / device.step_times.prefill_s(chunk, 0, chunk),
    )
