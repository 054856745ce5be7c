"""The planner at the controls of a simulated fleet: each period it sees what gateways report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from baton.core.replicas import Role
from baton.platform.planner.capacity import FittedPasses, ReplicaModel
from baton.platform.planner.config import PlannerConfig
from baton.platform.planner.observation import Memory, Observation
from baton.platform.planner.plan import Decision, plan
from baton.platform.simulator.fleet.elastic import ElasticPools
from baton.platform.simulator.fleet.gateway import SimulatedGateway
from baton.platform.simulator.fleet.setup import Device, FleetSetup
from baton.platform.simulator.fleet.turns import Turn


@dataclass(slots=True)
class Seen:
    """Request counts at all gateways, since the beginning."""

    num_arrived: int = 0
    prompt_tokens: int = 0
    squared_prompt_tokens: float = 0.0
    num_ended: int = 0
    output_tokens: int = 0
    num_under_way: int = 0

    def come(self, turn: Turn) -> None:
        self.num_arrived += 1
        self.num_under_way += 1
        self.prompt_tokens += len(turn.prompt)
        self.squared_prompt_tokens += len(turn.prompt) ** 2

    def end(self, turn: Turn) -> None:
        self.num_ended += 1
        self.num_under_way -= 1
        self.output_tokens += len(turn.answer)

    def reject(self) -> None:
        self.num_under_way -= 1

    def copy(self) -> Seen:
        return Seen(
            self.num_arrived,
            self.prompt_tokens,
            self.squared_prompt_tokens,
            self.num_ended,
            self.output_tokens,
            self.num_under_way,
        )


class PlannedFleet(Protocol):
    """The fleet."""

    seen: Seen

    @property
    def gateways(self) -> Sequence[SimulatedGateway]: ...

    @property
    def now_s(self) -> float: ...

    @property
    def is_over(self) -> bool: ...

    def later(self, seconds: float, what: Callable[[], None]) -> None: ...


@dataclass(slots=True)
class SimulatedPlanner:
    setup: FleetSetup
    rules: PlannerConfig
    pools: ElasticPools
    fleet: PlannedFleet
    decisions: list[Decision] = field(default_factory=list)
    _memory: Memory = field(default_factory=Memory)
    _before: Seen = field(default_factory=Seen)

    def start(self) -> None:
        self.fleet.later(self.rules.period_s, self._decide)

    def _decide(self) -> None:
        models = {
            role: model_of(device, self.setup)
            for role, device in (
                (Role.PREFILL, self.setup.prefill),
                (Role.DECODE, self.setup.decode),
            )
        }
        decision, self._memory = plan(self._observed(), models, self.rules, self._memory)
        self.decisions.append(decision)
        self.pools.follow(decision)
        if not self.fleet.is_over:
            self.fleet.later(self.rules.period_s, self._decide)

    def _observed(self) -> Observation:
        seen, before, now = self.fleet.seen, self._before, self.fleet.now_s
        waiting = [turn for gateway in self.fleet.gateways for turn in gateway.waiting]
        self._before = seen.copy()
        return Observation(
            at_s=now,
            lasted_s=self.rules.period_s,
            num_arrived=seen.num_arrived - before.num_arrived,
            prompt_tokens=seen.prompt_tokens - before.prompt_tokens,
            squared_prompt_tokens=seen.squared_prompt_tokens - before.squared_prompt_tokens,
            num_ended=seen.num_ended - before.num_ended,
            output_tokens=seen.output_tokens - before.output_tokens,
            num_waiting=len(waiting),
            num_for_decode=sum(
                gateway.num_waiting for gateway in self.fleet.gateways if not gateway.can_decode
            ),
            waiting_tokens=sum(len(turn.prompt) for turn in waiting),
            oldest_wait_s=max((now - turn.arrived_s for turn in waiting), default=0.0),
            num_open=seen.num_under_way - len(waiting),
            prefill=self.pools.count(Role.PREFILL),
            decode=self.pools.count(Role.DECODE),
        )


def model_of(device: Device, setup: FleetSetup) -> ReplicaModel:
    links = setup.links
    return ReplicaModel(
        passes=FittedPasses(device.step_times),
        max_chunk=device.scheduler.max_chunk,
        num_kv_tokens=device.num_blocks * device.block_size,
        max_requests=min(device.max_running, device.max_open),
        overhead_s=links.front_s + 4 * links.latency_s,
    )
