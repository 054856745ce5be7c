"""A gateway of a simulated fleet: the router's own placer, with what it has heard so far.

    come --> outside, in order --> placed at once, or in line for a prefill replica --> sent
    hear, hear_of_blocks --> links, candidates, index --> soon after: whose turn is it now?

What a live one does with each word of a replica, `baton.gateway.fleet` says; here it is done to
values, without streams.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from baton.core.ids import Epoch
from baton.core.kv_events import KvEvents
from baton.core.messages import Capacity, Demand, ReplicaInfo, Role
from baton.platform.simulator.fleet.agenda import Agenda
from baton.platform.simulator.fleet.setup import FleetSetup, Part
from baton.platform.simulator.fleet.turns import Turn
from baton.router.candidate import Candidate, Speed
from baton.router.fair_queue import FairQueue
from baton.router.kv_index import Expected, KvIndex
from baton.router.matches import Matches
from baton.router.placement import Placement, PlacementRequest
from baton.router.placer import Placer, Routing
from baton.router.pool import KnownReplica, Pool
from baton.router.prompt import Prompt
from baton.router.prompt_names import PromptNames
from baton.router.pulling import PullRates
from baton.router.view import View, look

LOOK_S = 0.25
"""How often those in line are looked after when nothing happens."""


class Replica(Protocol):
    @property
    def info(self) -> ReplicaInfo: ...

    def hear(self, gateway: int, demand: Demand) -> None: ...


class Decodes(Replica, Protocol):
    def generate(self, turn: Turn, gateway: int) -> None: ...


class Customer(Protocol):
    """Who sends the requests; called when tokens have come."""

    def give(self, turn: Turn, num_tokens: int) -> None: ...


@dataclass(slots=True, eq=False)
class _Link:
    """What is known of one replica."""

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
    """What is to be taken back of a request that was sent."""

    placement: Placement
    computes: Epoch
    on_decode: Expected
    on_prefill: Expected | None


class SimulatedGateway:
    def __init__(
        self,
        number: int,
        setup: FleetSetup,
        agenda: Agenda,
        routing: Routing,
        speeds: Mapping[Role, Speed],
    ) -> None:
        self._number = number
        self._setup = setup
        self._agenda = agenda
        self._speeds = speeds
        self._links: dict[Epoch, _Link] = {}
        self._decodes: dict[Epoch, Decodes] = {}
        self._pool_by_role = {Role.PREFILL: Pool(), Role.DECODE: Pool()}
        self._index = KvIndex()
        matches = Matches(self._index, lambda epoch: self._links[epoch].info.layout)
        self._placer = Placer(routing, matches.num_tokens)
        self._rates = routing.pull_rates
        self._outside: FairQueue[Turn] = FairQueue({})
        self._in_line: dict[int, Turn] = {}
        """By the prompt's number."""
        self._booked: dict[str, _Booked] = {}
        """By request id."""
        self._customer: Customer | None = None
        self._is_serving = False
        self._is_looking = False

    def connect(
        self, prefill: Sequence[Replica], decode: Sequence[Decodes], customer: Customer
    ) -> None:
        self._customer = customer
        for replica in (*prefill, *decode):
            info = replica.info
            candidate = Candidate(
                info.replica_id, self._speeds[info.role], epoch=info.epoch, credit_tokens=None
            )
            known = KnownReplica(info, candidate)
            known.is_connected = True
            self._pool_by_role[info.role].join(known)
            self._links[info.epoch] = _Link(replica, known)
            self._index.apply(info.epoch, KvEvents(first_sequence=1, is_snapshot=True))
        self._decodes = {replica.info.epoch: replica for replica in decode}

    # From clients.

    def come(self, turn: Turn) -> bool:
        """False if it is turned away: enough wait already."""
        limit = self._setup.max_waiting
        if not len(self._outside) and self._enter(turn):
            return True
        if limit is not None and len(self._outside) >= limit:
            return False
        self._outside.add(turn, now=self._agenda.now)
        self._want()
        return True

    # From replicas.

    def hear(self, epoch: Epoch, capacity: Capacity) -> None:
        link = self._links[epoch]
        link.known.capacity, candidate = capacity, link.candidate
        self._write(link)
        num_running = 0
        if link.info.role is Role.PREFILL:
            candidate.credit_tokens = capacity.credit_tokens
        else:
            num_running = max(capacity.num_running, link.known.num_open)
        if Part.GOSSIP not in self._setup.without:
            candidate.hear(capacity.num_queued_tokens, num_running, self._agenda.now)
        self._demand(link, link.wanted.num_requests, link.wanted.num_tokens)
        self._change()

    def hear_of_blocks(self, epoch: Epoch, events: KvEvents) -> None:
        self._index.apply(epoch, events)

    def give(self, frame: Mapping[Turn, int]) -> None:
        """Tokens of some requests have come from their replica."""
        for turn, num_tokens in frame.items():
            self._give(turn, num_tokens)

    def _give(self, turn: Turn, num_tokens: int) -> None:
        assert self._customer is not None
        booked = self._booked[turn.request_id]
        is_first = not turn.num_given
        self._customer.give(turn, num_tokens)
        if is_first:
            if booked.on_prefill is not None:
                self._index.release(booked.on_prefill)
            candidate = self._links[booked.computes].candidate
            candidate.finished(booked.placement.prompt, self._agenda.now)
            self._change()
        if turn.is_over:
            del self._booked[turn.request_id]
            self._index.release(booked.on_decode)
            link = self._links[booked.placement.decode.epoch]
            link.known.num_open -= 1
            self._write(link)
            link.candidate.num_running = max(link.candidate.num_running - 1, 0)
            self._change()

    # Placing.

    def _enter(self, turn: Turn) -> bool:
        """Place it, or let it stand in line; False if it has to wait outside."""
        view = self._view(PromptNames())
        if not view.decode.pool.is_open.any() or not self._placer.has_space(view):
            return False
        named = Part.SESSIONS not in self._setup.without
        asked = PlacementRequest(
            request_id=turn.request_id,
            num_tokens=len(turn.prompt),
            arrived_s=turn.arrived_s,
            session=turn.arrival.request.session or "" if named else "",
        )
        now = self._agenda.now
        found = self._placer.place(asked, turn.names, self._view(turn.names), now)
        match found:
            case None:
                return False
            case Placement():
                self._send(turn, found)
            case Prompt():
                self._in_line[found.number] = turn
                self._look_later()
        return True

    def _change(self) -> None:
        """Soon after a change, never within it."""
        if not self._is_serving and (self._in_line or len(self._outside)):
            self._is_serving = True
            self._agenda.after(0.0, self._serve)

    def _serve(self) -> None:
        self._is_serving = False
        now = self._agenda.now
        for prompt in self._placer.stranded(self._view(PromptNames()), now):
            turn = self._in_line.pop(prompt.number)
            if not self._enter(turn):
                self._outside.add(turn, is_retry=True, now=now)
        for prompt, placement in self._placer.served(self._view, now):
            self._send(self._in_line.pop(prompt.number), placement)
        while (entry := self._outside.first()) is not None and self._enter(entry.item):
            self._outside.serve(entry)
            self._outside.charge(entry.tenant, len(entry.item.prompt))
        self._want()

    def _look_later(self) -> None:
        """Even if nothing is heard from anybody."""
        if not self._is_looking:
            self._is_looking = True
            self._agenda.after(LOOK_S, self._look)

    def _look(self) -> None:
        self._is_looking = False
        if self._in_line:
            self._change()
            self._look_later()

    def _send(self, turn: Turn, placement: Placement) -> None:
        decode = placement.decode.epoch
        computes = placement.prefill[0].epoch if placement.prefill else decode
        turn.placement = placement
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
        self._links[computes].candidate.book(prompt, num_held, self._agenda.now)
        sent = partial(self._decodes[decode].generate, turn, self._number)
        self._agenda.after(self._setup.links.latency_s, sent)

    def _expect(self, turn: Turn, epoch: Epoch) -> Expected:
        return self._index.expect(turn.names.under(self._links[epoch].info.layout), epoch)

    # What is known.

    def _write(self, link: _Link) -> None:
        self._pool_by_role[link.info.role].write(link.known)

    def _view(self, names: PromptNames) -> View:
        pools = self._pool_by_role
        return look(names, self._index, pools[Role.DECODE], pools[Role.PREFILL], self._rates)

    # What replicas are told of what waits.

    def _want(self) -> None:
        num_requests = len(self._outside) + len(self._in_line)
        num_tokens = self._placer.num_line_tokens
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
            heard = partial(link.replica.hear, self._number, wanted)
            self._agenda.after(self._setup.links.latency_s, heard)


def _rounded(number: int) -> int:
    """Up to a power of two, so that a line of changing length is seldom news."""
    return 1 << (number - 1).bit_length() if number else 0


def pull_rates(setup: FleetSetup) -> PullRates:
    """What fetching and computing cost, as gateways of this fleet know it."""
    device = setup.prefill if setup.num_prefill else setup.decode
    chunk = device.scheduler.max_chunk
    return PullRates(
        is_enabled=Part.PULLS not in setup.without,
        latency_s=setup.links.latency_s,
        bytes_per_s=setup.links.bytes_per_s,
        tokens_per_s=chunk / device.step_times.prefill_s(chunk, 0, chunk),
    )
