"""The planner's settings: the SLO, the limits, the pace."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from baton.core.config_node import ConfigNode, Count, NonNegative, Seconds
from baton.core.replicas import Role

PATIENCE = 2.0
"""Cold starts that a new replica may take before it counts as late."""

Share = Annotated[float, msgspec.Meta(ge=0.5, lt=1)]


class PlannerConfig(ConfigNode, frozen=True, kw_only=True):
    """The planner, which sets numbers of replicas by load and SLO."""

    enabled: bool = False
    """Plan while the deployment serves; `baton explain planner` shows its decisions. The pools'
    `replicas` are then the initial numbers."""
    mode: Literal["observe", "scale"] = "scale"
    """`observe` only reports what it would do. `scale` does it, for applications of `baton
    deploy`."""
    held_until: dict[Role, float] = msgspec.field(default_factory=dict)
    """Unix time until which a role's number is held, by the registry's clock; `baton scale` sets
    it."""
    hold_s: float = 600.0
    """Seconds for which a number set by `baton scale` is held, unless it is given `--hold`."""
    nodes: Literal["fixed", "kuberay"] = "fixed"
    """How nodes are added and removed. `fixed`: they are not. `kuberay`: worker groups follow the
    numbers of replicas (`baton k8s follow`, which the chart then runs), and the planner adds
    replicas once their nodes exist."""
    groups_url: str = ""
    """The URL of `baton k8s follow`, whose state `baton explain planner` shows: `http://HOST:9480`.
    The chart sets it."""
    asked_prefill: NonNegative = 0
    """Prefill replicas for which nodes are requested; the planner sets it."""
    asked_decode: NonNegative = 0
    """Decode replicas for which nodes are requested; the planner sets it."""
    ttft_s: Seconds = 1.0
    """The SLO of the time to first token, in seconds."""
    itl_s: Seconds = 0.1
    """The SLO of the time between output tokens, in seconds."""
    share: Share = 0.9
    """Share of requests that must meet both SLOs."""
    min_prefill: NonNegative = 1
    """The fewest prefill replicas."""
    max_prefill: NonNegative = 8
    """The most prefill replicas. 0: decode replicas compute prompts."""
    min_decode: NonNegative = 1
    """The fewest decode replicas."""
    max_decode: Count = 8
    """The most decode replicas."""
    idle_s: float = 0.0
    """Seconds without a request after which both pools scale to zero; the next request then waits
    for a cold start. 0: never. A change from or to 0 restarts processes."""
    is_asleep: bool = False
    """Both pools are at zero; the planner sets it."""
    cold_start_s: Seconds = 30.0
    """Seconds from the decision to add a replica until it takes requests."""
    period_s: Seconds = 5.0
    """Seconds from one decision to the next."""
    window_s: Seconds = 60.0
    """Seconds of traffic from which rates and trends are estimated."""
    steady_s: Seconds = 120.0
    """A pool shrinks only to a number that was enough for this many seconds."""

    def __post_init__(self) -> None:
        for role in ("prefill", "decode"):
            if getattr(self, f"min_{role}") > getattr(self, f"max_{role}"):
                raise ValueError(
                    f"planner.min_{role} is more than planner.max_{role}; lower it, or raise "
                    f"planner.max_{role}"
                )
        holds = {f"held_until.{role.value}": until for role, until in self.held_until.items()}
        for name, number in {"idle_s": self.idle_s, "hold_s": self.hold_s, **holds}.items():
            if number < 0:
                raise ValueError(f"planner.{name} must not be negative; 0 turns it off")
        if self.groups_url and not self.groups_url.startswith(("http://", "https://")):
            raise ValueError("planner.groups_url must begin with http:// or https://")
        if self.enabled and not self.min_decode:
            raise ValueError(
                "planner.min_decode must be at least 1; to stop all replicas when no requests "
                "come, set planner.idle_s"
            )
        if self.idle_s and self.nodes == "kuberay":
            raise ValueError(
                "planner.idle_s: pools cannot be scaled to zero with planner.nodes kuberay; leave "
                "idle_s at 0, or set planner.nodes to fixed"
            )
        if self.is_asleep and not self.wakes:
            raise ValueError(
                "planner.is_asleep: no planner would start the replicas again; set "
                "planner.enabled and planner.idle_s, or leave it out"
            )

    def least(self, role: Role) -> int:
        return self.min_prefill if role is Role.PREFILL else self.min_decode

    def most(self, role: Role) -> int:
        return self.max_prefill if role is Role.PREFILL else self.max_decode

    def held_s(self, role: Role, now: float) -> float:
        """Seconds for which a role's number is still held; 0 if it is not. `now`: Unix time."""
        return max(self.held_until.get(role, 0.0) - now, 0.0)

    def asked(self, role: Role) -> int:
        return self.asked_prefill if role is Role.PREFILL else self.asked_decode

    @property
    def sets_counts(self) -> bool:
        """Whether it carries out its decisions."""
        return self.enabled and self.mode == "scale"

    @property
    def wakes(self) -> bool:
        """Whether it starts replicas for waiting requests, where there are none (scale from
        zero)."""
        return self.sets_counts and self.idle_s > 0
