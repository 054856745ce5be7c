"""What the planner is told: the promise, the limits, how steady it is to be."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from baton.core.config_node import ConfigNode, Count, NonNegative, Seconds
from baton.core.replicas import Role

PATIENCE = 2.0
"""Times a cold start that replicas may take to come."""

Share = Annotated[float, msgspec.Meta(ge=0.5, lt=1)]


class PlannerConfig(ConfigNode, frozen=True, kw_only=True):
    """How many replicas there are, set by what arrives and what was promised."""

    enabled: bool = False
    """Decide while the deployment serves; `baton explain planner` tells what and why. The pools'
    `replicas` are the numbers to begin with then."""
    mode: Literal["observe", "scale"] = "scale"
    """`observe` only tells what it would do. `scale` does it, to what `baton deploy` started."""
    held_until: dict[Role, float] = msgspec.field(default_factory=dict)
    """Unix time until which a role's number stays as it is, by the registry's clock; `baton scale`
    sets it."""
    hold_s: float = 600.0
    """Seconds for which the number that `baton scale` sets stays, unless it says `--hold`."""
    nodes: Literal["fixed", "kuberay"] = "fixed"
    """What adds and removes nodes. `fixed`: nothing, they are there. `kuberay`: worker groups
    follow the numbers of replicas (`baton k8s follow`, which the chart then runs), and the planner
    adds replicas once their nodes are there."""
    groups_url: str = ""
    """Where `baton k8s follow` tells what it does and why, for `baton explain planner`:
    `http://HOST:9480`. The chart sets it."""
    asked_prefill: NonNegative = 0
    """Prefill replicas that nodes are asked for; the planner sets it."""
    asked_decode: NonNegative = 0
    """Decode replicas that nodes are asked for; the planner sets it."""
    ttft_s: Seconds = 1.0
    """A first token is promised within it."""
    itl_s: Seconds = 0.1
    """Each further token is promised within it."""
    share: Share = 0.9
    """Share of requests for which both limits are to hold."""
    min_prefill: NonNegative = 1
    """Prefill replicas that there are at least."""
    max_prefill: NonNegative = 8
    """Prefill replicas that there are at most. 0: decode replicas compute prompts."""
    min_decode: NonNegative = 1
    """Decode replicas that there are at least."""
    max_decode: Count = 8
    """Decode replicas that there are at most."""
    idle_s: float = 0.0
    """Seconds without a request after which both pools go to zero; one that comes then waits for a
    cold start. 0: never. A change from or to 0 starts processes anew."""
    is_asleep: bool = False
    """Both pools are at zero; the planner sets it."""
    cold_start_s: Seconds = 30.0
    """Seconds from the decision to add a replica until it takes requests."""
    period_s: Seconds = 5.0
    """Seconds from one decision to the next."""
    window_s: Seconds = 60.0
    """Seconds of traffic from which rates and trends are estimated."""
    steady_s: Seconds = 120.0
    """A pool is made smaller only to what was enough for so long."""

    def __post_init__(self) -> None:
        for role in ("prefill", "decode"):
            if getattr(self, f"min_{role}") > getattr(self, f"max_{role}"):
                raise ValueError(f"planner.min_{role} is more than planner.max_{role}")
        holds = {f"held_until.{role.value}": until for role, until in self.held_until.items()}
        for name, number in {"idle_s": self.idle_s, "hold_s": self.hold_s, **holds}.items():
            if number < 0:
                raise ValueError(f"planner.{name} must not be negative; 0 is none")
        if self.groups_url and not self.groups_url.startswith(("http://", "https://")):
            raise ValueError("planner.groups_url must begin with http:// or https://")
        if self.enabled and not self.min_decode:
            raise ValueError(
                "planner.min_decode: of a pool that serves one replica stays; set planner.idle_s "
                "to have both go when nobody asks"
            )
        if self.idle_s and self.nodes == "kuberay":
            raise ValueError(
                "planner.idle_s: pools whose nodes come and go with them do not go to zero; leave "
                "it at 0, or planner.nodes at fixed"
            )
        if self.is_asleep and not self.wakes:
            raise ValueError(
                "planner.is_asleep: nobody would start replicas again; set planner.enabled and "
                "planner.idle_s, or leave it out"
            )

    def least(self, role: Role) -> int:
        return self.min_prefill if role is Role.PREFILL else self.min_decode

    def most(self, role: Role) -> int:
        return self.max_prefill if role is Role.PREFILL else self.max_decode

    def held_s(self, role: Role, now: float) -> float:
        """Seconds for which a role's number still stays as it is; 0 for one that is free. Unix
        time."""
        return max(self.held_until.get(role, 0.0) - now, 0.0)

    def asked(self, role: Role) -> int:
        return self.asked_prefill if role is Role.PREFILL else self.asked_decode

    @property
    def sets_counts(self) -> bool:
        """Whether it does what it decides."""
        return self.enabled and self.mode == "scale"

    @property
    def wakes(self) -> bool:
        """Whether replicas are started for who waits, where there are none."""
        return self.sets_counts and self.idle_s > 0
