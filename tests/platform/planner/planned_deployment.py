"""Two pools as a planner sees them: what their gateways tell, and what it proposes."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from tests.gateway.fleet.known_replicas import make_replica

from baton.core.clock import ManualClock
from baton.core.errors import Unavailable
from baton.core.ids import Epoch, ReplicaId
from baton.core.replicas import Membership, ReplicaInfo, Role
from baton.core.step_times import StepTimes
from baton.gateway.fleet.traffic import ReplicaSpeed, TrafficReport
from baton.platform.planner.config import PlannerConfig
from baton.platform.planner.planned import Planned
from baton.platform.planner.planner import Planner
from baton.platform.planner.proposal import Counts, Proposal

RULES = PlannerConfig(
    enabled=True, ttft_s=1.5, itl_s=0.1, cold_start_s=10.0, steady_s=60.0, window_s=30.0
)


TIMES = StepTimes(constant_s=0.02, token_s=5e-4, num_prompt_steps=99, num_decode_steps=99)


GATEWAY = Epoch("g")


def replica(role: Role, number: int) -> ReplicaInfo:
    info = make_replica(f"{role.value}-{number}", role=role)
    return replace(info, max_chunk=2048, num_blocks=4096, max_open=64)


class Deployment:
    """Gateways that each say what comes, and replicas that are there at once."""

    def __init__(
        self,
        rules: PlannerConfig = RULES,
        num_gateways: int = 1,
        engines: Counts = MappingProxyType({}),
    ) -> None:
        self.clock = ManualClock(1000.0)
        self.wall = ManualClock(1e9)
        wanted = dict.fromkeys(Role, 1)
        self.planner = Planner(
            Planned(
                rules=rules,
                wanted=wanted,
                num_gateways=num_gateways,
                engines=engines,
                max_running=dict.fromkeys(Role, 64),
            ),
            clock=self.clock,
            wall_clock=self.wall,
        )
        self.placeable = dict.fromkeys(Role, 8)
        self.total = TrafficReport(age_s=0.0)
        self.answer_tokens = 50

    @property
    def known(self) -> Membership:
        replicas = [
            replica(role, number)
            for role, wanted in self.planner.planned.wanted.items()
            for number in range(
                min(wanted, self.placeable[role]) * self.planner.planned.of_one(role)
            )
        ]
        return Membership(incarnation=Epoch("r"), version=1, age_s=100.0, replicas=tuple(replicas))

    def come(self, rate: float, seconds: float) -> None:
        """So many requests a second, and all have a place and their answer at once."""
        number, total = round(rate * seconds), self.total
        self.total = replace(
            total,
            age_s=total.age_s + seconds,
            num_arrived=total.num_arrived + number,
            num_placed=total.num_placed + number,
            computed_tokens=total.computed_tokens + 1000 * number,
            squared_computed_tokens=total.squared_computed_tokens + 10**6 * number,
            num_ended=total.num_ended + number,
            output_tokens=total.output_tokens + self.answer_tokens * number,
        )

    def report(self, age_s: float = 0.0) -> None:
        speeds = {info.epoch: ReplicaSpeed(TIMES, age_s) for info in self.known.replicas}
        self.planner.add_report(GATEWAY, replace(self.total, speeds=speeds))

    def hear_of(self, rate: float, seconds: int, *, hears: bool = True) -> None:
        for _ in range(seconds):
            self.clock.advance(1.0)
            self.wall.advance(1.0)
            self.come(rate, 1.0)
            if hears:
                self.report()

    def live(self, rate: float, seconds: float, *, hears: bool = True) -> Proposal:
        """And carry out what is proposed, if it may be."""
        found = None
        for _ in range(round(seconds / 5)):
            self.hear_of(rate, 5, hears=hears)
            found = self.planner.propose(self.known)
            assert found is not None
            is_done = found.is_change
            self.planner.keep(found, "scaled" if is_done else "as it is")
            if is_done:
                self.planner.want(found.started, {})
        assert found is not None
        return found


def prefill(proposal: Proposal) -> int:
    return proposal.counts[Role.PREFILL]


def overtaken(before: object, counts: object, asked: object) -> bool:
    return False


def fails(before: object, counts: object, asked: object) -> bool:
    raise Unavailable("the head is away")


async def nobody_flips(giver: Role, taker: Role) -> ReplicaId:
    raise AssertionError
