r"""A simulated gateway: the router's own placer on reported state.

come --> refused: over its tenant's limits, or too many wait
     \-> outside, in order --> placed at once, or in line for a prefill replica --> sent
observe, on_kv_events --> FleetView --> soon after: whose turn is it now?
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol

from baton.core.errors import RateLimited
from baton.core.ids import Epoch
from baton.core.kv_events import KvEvents
from baton.core.replicas import Capacity, Role
from baton.gateway.access.rate_limits import RateLimits
from baton.gateway.fleet.placement.admission_line import AdmissionLine, AdmissionTicket
from baton.platform.simulator.fleet.event_queue import EventQueue
from baton.platform.simulator.fleet.fleet_view import FleetView, Replica
from baton.platform.simulator.fleet.setup import FleetSetup, Part
from baton.platform.simulator.fleet.turns import TtftEstimate, Turn
from baton.router.placement import Placement, PlacementRequest
from baton.router.placer import NOTHING, Placer, Routing
from baton.router.prompt import Prompt
from baton.router.replicas.candidate import Speed
from baton.router.speeds.prediction_errors import PredictionErrors

LOOK_S = 0.25
"""How often those in line are looked after when nothing happens."""


class Decodes(Replica, Protocol):
    def generate(self, turn: Turn, gateway: int) -> None: ...


class SimulatedClient(Protocol):
    """The client that sends the requests; called when tokens have come, or none will."""

    def give(self, turn: Turn, num_tokens: int) -> None: ...

    def refuse(self, turn: Turn) -> None: ...


class SimulatedGateway:
    def __init__(
        self,
        number: int,
        setup: FleetSetup,
        event_queue: EventQueue,
        routing: Routing,
        speeds: Mapping[Role, Speed],
    ) -> None:
        self.number = number
        self._setup = setup
        self._event_queue = event_queue
        self._known = FleetView(number, setup, event_queue, speeds, routing.pull_rates)
        self._placer = Placer(routing, self._known.num_cached, self._known.lookup)
        self._decodes: dict[Epoch, Decodes] = {}
        tenants = {tenant.name: tenant.config for tenant in setup.tenants}
        weights = {name: tenant.weight for name, tenant in tenants.items()}
        limit = sys.maxsize if setup.max_waiting is None else setup.max_waiting
        self._outside: AdmissionLine[Turn] = AdmissionLine(limit, weights)
        self._limits = RateLimits(tenants, event_queue)
        self._limits.be_share(dict.fromkeys(tenants, 1 / setup.num_gateways))
        self._in_line: dict[int, Turn] = {}
        """Waiting turns by the prompt's number."""
        self._client: SimulatedClient | None = None
        self._under_way: dict[str, Turn] = {}
        """Turns that are not over, by request id."""
        self._errors = PredictionErrors()
        self._is_dead = False
        self._is_serving = False
        self._is_looking = False

    def connect(self, client: SimulatedClient) -> None:
        self._client = client

    def meet(self, replica: Replica, decodes: Decodes | None) -> None:
        """A replica is there; `decodes`: itself, if that is its role."""
        self._known.meet(replica)
        if decodes is not None:
            self._decodes[replica.info.epoch] = decodes
        self._change()

    def forget(self, replica: Replica) -> None:
        """It has nothing more, and is gone."""
        self._known.forget(replica.info.epoch)
        self._decodes.pop(replica.info.epoch, None)
        self._change()

    @property
    def num_waiting(self) -> int:
        """Requests that no replica has yet."""
        return len(self._outside) + len(self._in_line)

    @property
    def waiting(self) -> Iterator[Turn]:
        yield from self._in_line.values()
        yield from (entry.item for entry in self._outside)

    @property
    def can_decode(self) -> bool:
        """Whether any decode replica has room, as far as it knows."""
        return self._known.view(NOTHING).decode.pool.num_open > 0

    # From clients.

    def die(self) -> Sequence[Turn]:
        """Stop; return the clients of running requests, which notice it."""
        self._is_dead = True
        return tuple(self._under_way.values())

    def come(self, turn: Turn) -> None:
        """A request arrives; it, or another one, may be refused."""
        turn.gateway = self.number
        try:
            self._limits.admit(turn.tenant, len(turn.prompt))
        except RateLimited:
            self._refuse(turn)
            return
        now = self._event_queue.now
        self._under_way[turn.request_id] = turn
        ticket = AdmissionTicket(tenant=turn.tenant, due_in_s=turn.slo.due_in_s)
        entry = self._outside.enter(turn, ticket, now)
        if self._outside.first() is entry and self._enter(turn):
            self._outside.serve_at_once(entry, now)
            return
        refused = self._outside.refused(entry, ticket, now)
        if refused is not None:
            self._refuse(refused.entry.item)
        self._want()

    def _refuse(self, turn: Turn) -> None:
        assert self._client is not None
        self._under_way.pop(turn.request_id, None)
        self._client.refuse(turn)

    # From replicas.

    def observe(self, epoch: Epoch, capacity: Capacity) -> None:
        if self._is_dead:
            return
        self._known.observe(epoch, capacity)
        self._change()

    def on_kv_events(self, epoch: Epoch, events: KvEvents) -> None:
        if self._is_dead:
            return
        self._known.on_kv_events(epoch, events)

    def give(self, frame: Mapping[Turn, int]) -> None:
        """Tokens of some requests have come from their replica."""
        if self._is_dead:
            return
        assert self._client is not None
        for turn, num_tokens in frame.items():
            if not turn.num_given:
                self._known.got_first_token(turn)
                if turn.ttft_estimate is not None:
                    self._errors.observe(
                        turn.ttft_estimate.predicted_s,
                        self._event_queue.now - turn.ttft_estimate.at_s,
                    )
                self._change()
            self._outside.charge(turn.tenant, num_tokens)
            self._limits.charge(turn.tenant, num_tokens)
            self._client.give(turn, num_tokens)
            if turn.is_over:
                self._known.ended(turn)
                self._placer.observe_output(turn.num_given)
                del self._under_way[turn.request_id]
                self._change()

    # Placing.

    def _enter(self, turn: Turn) -> bool:
        """Place it, or let it stand in line; False if it has to wait outside."""
        view = self._known.view(NOTHING)
        if not view.decode.pool.num_open or not self._placer.has_space(view):
            return False
        named = Part.SESSIONS not in self._setup.without
        asked = PlacementRequest(
            request_id=turn.request_id,
            num_tokens=len(turn.prompt),
            arrived_s=turn.arrived_s,
            session=turn.arrival.request.session or "" if named else "",
            due_s=turn.slo.due_s(turn.arrived_s),
            itl_s=turn.slo.allowed_itl_s,
        )
        now = self._event_queue.now
        found = self._placer.place(asked, turn.names, self._known.view(turn.names), now)
        match found:
            case None:
                return False
            case Placement():
                foreseen_s = found.foreseen_s
                self._send(turn, found)
            case Prompt():
                _, foreseen_s = self._placer.foreseen(found, now)
                self._in_line[found.number] = turn
                self._look_later()
        if turn.ttft_estimate is None:
            turn.ttft_estimate = TtftEstimate(now, foreseen_s, self._errors.interval(foreseen_s))
        return True

    def _change(self) -> None:
        """Soon after a change, never within it."""
        if not self._is_serving and (self._in_line or len(self._outside)):
            self._is_serving = True
            self._event_queue.after(0.0, self._serve)

    def _serve(self) -> None:
        self._is_serving = False
        if self._is_dead:
            return
        now = self._event_queue.now
        for prompt in self._placer.stranded(self._known.view(NOTHING), now):
            turn = self._in_line.pop(prompt.number)
            if not self._enter(turn):
                ticket = AdmissionTicket(tenant=turn.tenant, is_retry=True)
                self._outside.enter(turn, ticket, now)
        for prompt, placement in self._placer.served(self._known.view, now):
            self._send(self._in_line.pop(prompt.number), placement)
        while (entry := self._outside.first()) is not None and self._enter(entry.item):
            self._outside.serve(entry, now)
        self._want()

    def _look_later(self) -> None:
        """Place again after a while, even without a report."""
        if not self._is_looking:
            self._is_looking = True
            self._event_queue.after(LOOK_S, self._look)

    def _look(self) -> None:
        self._is_looking = False
        if self._in_line and not self._is_dead:
            self._change()
            self._look_later()

    def _send(self, turn: Turn, placement: Placement) -> None:
        turn.placement = placement
        self._outside.charge(turn.tenant, placement.num_prefill_tokens)
        self._known.sent(turn, placement)
        sent = partial(self._decodes[placement.decode.epoch].generate, turn, self.number)
        self._event_queue.after(self._setup.links.latency_s, sent)

    def _want(self) -> None:
        num_requests = len(self._outside) + len(self._in_line)
        self._known.want(num_requests, self._placer.num_line_tokens)
