"""The deployment that a planner plans for."""

from __future__ import annotations

from dataclasses import dataclass, field

from msgspec import structs

from baton.core.replicas import Role
from baton.platform.planner.config import PlannerConfig
from baton.platform.planner.proposal import Counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The present configuration."""

    rules: PlannerConfig
    wanted: Counts
    """Replicas that are to be started in each role, whatever role some have taken since."""
    num_gateways: int
    max_running: Counts
    """Requests that an engine of each role computes at once."""
    engines: Counts = field(default_factory=dict)
    """Engines of one such replica, by role, each of which is a replica to gateways and to a plan;
    one where nothing is said."""
    has_prefill: bool = True
    """Whether there is a prefill pool, be it asleep."""
    can_flip: bool = False
    """Whether the pools are so alike that replicas may take the other role."""
    flip_s: float = 0.0
    """Seconds that a replica may take to change its role: as long as a drain."""

    @property
    def live_rules(self) -> PlannerConfig:
        """The rules, their limits in engines. A pool that is configured without replicas is no
        deployment: none goes there, or comes from there."""
        least, most = max(self.rules.min_prefill, 1), self.rules.max_prefill
        if not self.has_prefill:
            least = most = 0
        return structs.replace(
            self.rules,
            min_prefill=least * self.of_one(Role.PREFILL),
            max_prefill=most * self.of_one(Role.PREFILL),
            min_decode=self.rules.min_decode * self.of_one(Role.DECODE),
            max_decode=self.rules.max_decode * self.of_one(Role.DECODE),
        )

    @property
    def wanted_engines(self) -> Counts:
        return {role: number * self.of_one(role) for role, number in self.wanted.items()}

    def of_one(self, role: Role) -> int:
        """Engines of one replica of Serve."""
        return self.engines.get(role, 1)

    @property
    def is_asleep(self) -> bool:
        return not any(self.wanted.values())

    def least(self, role: Role) -> int:
        """The least number of replicas that Serve is given for this role, unless its pool
        sleeps."""
        return int(role is Role.DECODE or self.has_prefill)
