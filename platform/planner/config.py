"""What the planner is told: the promise, the limits, how steady it is to be."""

from __future__ import annotations

from typing import Annotated

import msgspec

from baton.core.config_node import ConfigNode, Count, NonNegative, Seconds

Share = Annotated[float, msgspec.Meta(ge=0.5, lt=1)]


class PlannerConfig(ConfigNode, frozen=True, kw_only=True):
    """How many replicas there are, set by what arrives and what was promised."""

    ttft_s: Seconds = 1.0
    """A first token is promised within it."""
    itl_s: Seconds = 0.1
    """And each further one."""
    share: Share = 0.9
    """Of requests for which that is to hold."""
    min_prefill: NonNegative = 1
    max_prefill: NonNegative = 8
    """0: decode replicas compute prompts."""
    min_decode: NonNegative = 1
    max_decode: Count = 8
    idle_s: float = 0.0
    """Without a request for so long both pools go to zero; one that comes then waits for a cold
    start. 0: never."""
    cold_start_s: Seconds = 30.0
    """From the decision to add a replica until it takes requests, unless starts were measured."""
    period_s: Seconds = 5.0
    """From one decision to the next."""
    window_s: Seconds = 60.0
    """Of what arrived: what rates and trends are told from."""
    steady_s: Seconds = 120.0
    """A pool is made smaller only to what was enough for so long."""

    def __post_init__(self) -> None:
        for role in ("prefill", "decode"):
            if getattr(self, f"min_{role}") > getattr(self, f"max_{role}"):
                raise ValueError(f"planner.min_{role} is more than planner.max_{role}")
        if self.idle_s < 0:
            raise ValueError("planner.idle_s must not be negative; 0 keeps the pools")
