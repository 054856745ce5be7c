"""A trace played on a simulated fleet: clients, gateways, prefill and decode replicas.

client --front_s--> gateway --> decode replica <--> prefill replica
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from math import inf
from random import Random

from baton.core.ids import Epoch, ReplicaId
from baton.core.replicas import ReplicaInfo, Role
from baton.platform.simulator.arrivals import Arrival, Arrivals
from baton.platform.simulator.fleet.decode import DecodeReplica
from baton.platform.simulator.fleet.elastic import ElasticPools
from baton.platform.simulator.fleet.engine import EngineHooks, SimulatedEngine
from baton.platform.simulator.fleet.event_queue import EventQueue
from baton.platform.simulator.fleet.fleet_view import pull_rates
from baton.platform.simulator.fleet.gateway import SimulatedGateway
from baton.platform.simulator.fleet.outcome import FleetOutcome
from baton.platform.simulator.fleet.prefill import PrefillReplica, Wiring
from baton.platform.simulator.fleet.pulling import Puller
from baton.platform.simulator.fleet.replica_updates import ReplicaUpdates
from baton.platform.simulator.fleet.setup import Device, FleetSetup, Part
from baton.platform.simulator.fleet.simulated_planner import Seen, SimulatedPlanner
from baton.platform.simulator.fleet.tenants import tenant_of
from baton.platform.simulator.fleet.turns import Turn, Turns
from baton.platform.simulator.setup import slo_of
from baton.platform.traces.trace import Trace
from baton.router.placer import Routing
from baton.router.policies.by_name import policy
from baton.router.replicas.candidate import Speed
from baton.router.speeds.speed import ConstantRate, MeasuredSpeed


class Fleet:
    """Plays one trace, once."""

    def __init__(self, trace: Trace, setup: FleetSetup, policy_name: str, seed: int) -> None:
        """Raises InvalidConfig if there is no such policy."""
        self._setup = setup
        self._event_queue = EventQueue()
        self._arrivals = Arrivals(trace)
        self._turns = Turns(trace)
        self._seed, self._random = seed, Random(seed)
        self._numbers = count()
        self.outcome = FleetOutcome()
        self.seen = Seen()
        self._engine_by_id: dict[str, SimulatedEngine] = {}
        self._policy_name = policy_name
        self._gateways = [self._gateway(number) for number in range(setup.num_gateways)]
        self._living = list(self._gateways)
        self._prefill_by_id: dict[str, PrefillReplica] = {}
        self._numbers_by_role = {role: count() for role in Role}
        self._max_len = setup.decode.num_blocks * setup.decode.block_size
        if setup.num_prefill:
            held = setup.prefill.num_blocks * setup.prefill.block_size
            self._max_len = min(self._max_len, held)
        self._computing: list[PrefillReplica | DecodeReplica] = []
        """Replicas that compute prompts."""
        self._decode: list[DecodeReplica] = []
        pools = ElasticPools(
            self.add,
            self._forget,
            self._event_queue,
            cold_start_s=setup.cold_start_s,
            flip_s=setup.flip_s,
        )
        self.pools = pools
        for role, num in ((Role.PREFILL, setup.num_prefill), (Role.DECODE, setup.num_decode)):
            for _ in range(num):
                pools.adopt(role, self.add(role))
        if setup.gateway_dies_s is not None:
            self._event_queue.at(setup.gateway_dies_s, self._lose_gateway)
        if setup.gateway_joins_s is not None:
            self._event_queue.at(setup.gateway_joins_s, self._add_gateway)
        self.planner = (
            None if setup.rules is None else SimulatedPlanner(setup, setup.rules, pools, self)
        )

    def add(self, role: Role) -> PrefillReplica | DecodeReplica:
        """A replica serves from now on."""
        is_decode = role is Role.DECODE
        device = self._setup.decode if is_decode else self._setup.prefill
        info = self._info(role, next(self._numbers_by_role[role]), device)
        updates, wiring = self._updates(info), self._wiring(device)
        replica: PrefillReplica | DecodeReplica
        if is_decode:
            replica = DecodeReplica(info, updates, wiring, self._prefill_by_id, self._gateways)
            self._decode.append(replica)
        else:
            replica = self._prefill_by_id[info.replica_id] = PrefillReplica(info, updates, wiring)
        if not is_decode or not self._setup.num_prefill:
            self._computing.append(replica)
        self._engine_by_id[info.replica_id] = replica.engine
        for gateway in self._living:
            self._introduce(gateway, replica)
        replica.tell()
        return replica

    def _introduce(
        self, gateway: SimulatedGateway, replica: PrefillReplica | DecodeReplica
    ) -> None:
        gateway.meet(replica, replica if isinstance(replica, DecodeReplica) else None)
        replica.join(gateway.number, gateway)

    def _forget(self, replica: PrefillReplica | DecodeReplica) -> None:
        for gateway in self._living:
            gateway.forget(replica)

    # Gateways that come and go.

    def _add_gateway(self) -> None:
        gateway = self._gateway(len(self._gateways))
        self._gateways.append(gateway)
        self._living.append(gateway)
        for replica in self._replicas:
            self._introduce(gateway, replica)
            replica.tell()

    def _lose_gateway(self) -> None:
        """Requests without a last token from it are sent to another gateway, from the beginning."""
        gateway = self._living.pop(0)
        for replica in self._replicas:
            replica.leave(gateway.number)
        for turn in gateway.die():
            self.seen.reject()
            again = self._turn(turn.arrival)
            self.outcome.num_asked_again += 1
            self._enters(again, self._random.choice(self._living))

    @property
    def _replicas(self) -> Sequence[PrefillReplica | DecodeReplica]:
        return (*self._prefill_by_id.values(), *self._decode)

    @property
    def gateways(self) -> Sequence[SimulatedGateway]:
        return self._gateways

    @property
    def now_s(self) -> float:
        return self._event_queue.now

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        self._event_queue.after(seconds, what)

    @property
    def is_over(self) -> bool:
        """Whether no more requests arrive, and none waits for a token."""
        return self._arrivals.next_s == inf and not self.seen.num_under_way

    @property
    def engines(self) -> Sequence[SimulatedEngine]:
        """Engines of all replicas. Read-only."""
        return tuple(self._engine_by_id.values())

    def play(self) -> FleetOutcome:
        """Simulate from the first request to the last token."""
        if self.planner is not None:
            self.planner.start()
        while True:
            arrival_s = self._arrivals.next_s
            if self._event_queue.next_s == arrival_s == inf:
                break
            if arrival_s <= self._event_queue.next_s:
                self._comes(self._arrivals.pop())
            else:
                self._event_queue.run_next()
        self.outcome.ended(
            busy_s=[replica.engine.busy_s for replica in self._computing],
            num_preempted=sum(replica.engine.num_preempted for replica in self._decode),
            num_local=sum(replica.num_computed_here for replica in self._decode),
        )
        return self.outcome

    def give(self, turn: Turn, num_tokens: int) -> None:
        """Tokens have come to their client."""
        turn.give(num_tokens, self._event_queue.now)
        if turn.is_over:
            self.outcome.serve(turn)
            self.seen.end(turn)
            self._arrivals.answered(turn.arrival, self._event_queue.now)

    def _comes(self, arrival: Arrival) -> None:
        turn = self._turn(arrival)
        gateway = self._random.choice(self._living)
        at_s = arrival.at_s + self._setup.links.front_s
        self._event_queue.at(at_s, lambda: self._enters(turn, gateway))

    def _enters(self, turn: Turn, gateway: SimulatedGateway) -> None:
        if gateway not in self._living:  # it died while the request was on its way
            gateway = self._random.choice(self._living)
        num_tokens = len(turn.prompt) + len(turn.answer)
        self.seen.come(turn)
        if num_tokens > self._max_len:
            self.refuse(turn)
        else:
            gateway.come(turn)

    def refuse(self, turn: Turn) -> None:
        """The client is asked to retry, and does not."""
        self.outcome.reject(turn)
        self.seen.reject()
        self._arrivals.answered(turn.arrival, self._event_queue.now)

    def _turn(self, arrival: Arrival) -> Turn:
        """An arrival as its client sends it."""
        turn = self._turns.of(arrival, next(self._numbers))
        conversation = arrival.request.session or f"{arrival.place}"
        turn.slo = slo_of(self._setup.slo_classes, self._seed, conversation)
        turn.tenant = tenant_of(self._setup.tenants, self._seed, conversation)
        return turn

    # Construction of the parts.

    def _gateway(self, number: int) -> SimulatedGateway:
        name, rates = self._policy_name, pull_rates(self._setup)
        gateway = SimulatedGateway(
            number,
            self._setup,
            self._event_queue,
            Routing(policy(name), pull_rates=rates, name=name),
            {role: self._speed(role) for role in Role},
        )
        gateway.connect(self)
        return gateway

    def _info(self, role: Role, number: int, device: Device) -> ReplicaInfo:
        is_decode = role is Role.DECODE
        return ReplicaInfo(
            replica_id=ReplicaId(f"{role.value}-{number}"),
            epoch=Epoch(f"{int(is_decode):x}{number:031x}"),
            role=role,
            address=f"{role.value}-{number}:0",
            layout=device.layout,
            num_blocks=device.num_blocks,
            max_model_len=device.num_blocks * device.block_size,
            max_open=device.max_open if is_decode else 0,
            max_queued_tokens=0 if is_decode else device.max_queued_tokens,
            max_chunk=device.scheduler.max_chunk,
        )

    def _updates(self, info: ReplicaInfo) -> ReplicaUpdates:
        return ReplicaUpdates(info, self._event_queue, self._setup.links.latency_s)

    def _wiring(self, device: Device) -> Wiring:
        return Wiring(
            event_queue=self._event_queue,
            latency_s=self._setup.links.latency_s,
            make_engine=self._engine_maker(device),
            make_puller=partial(Puller, event_queue=self._event_queue, links=self._setup.links),
            engine_of=self._engine_by_id.__getitem__,
        )

    def _engine_maker(self, device: Device) -> Callable[[EngineHooks], SimulatedEngine]:
        def make(hooks: EngineHooks) -> SimulatedEngine:
            noise = Random(self._random.random()) if self._setup.is_noisy else None
            return SimulatedEngine(device, self._event_queue, hooks, noise)

        return make

    def _speed(self, role: Role) -> Speed:
        setup = self._setup
        device = setup.prefill if role is Role.PREFILL else setup.decode
        if Part.STEP_MODEL in setup.without:
            return ConstantRate(tokens_per_s=pull_rates(setup).tokens_per_s)
        return MeasuredSpeed(times=device.step_times, max_chunk=device.scheduler.max_chunk)
