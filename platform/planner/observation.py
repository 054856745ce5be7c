"""The planner's input per period, and its memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from baton.core.replicas import Role
from baton.platform.planner.capacity import Load


@dataclass(frozen=True, slots=True)
class PoolCount:
    """Replicas of one role."""

    serving: int
    starting: int = 0
    draining: int = 0

    @property
    def num_kept(self) -> int:
        """Replicas that serve or are starting."""
        return self.serving + self.starting


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Traffic at all gateways since the previous observation."""

    at_s: float
    lasted_s: float
    num_arrived: int
    prompt_tokens: int
    """Prompt tokens of the requests that arrived, without cached ones where known."""
    squared_prompt_tokens: float
    cached_tokens: int = 0
    """Tokens of the same prompts that a prefix cache holds."""
    num_ended: int
    output_tokens: int
    """Output tokens of the requests that ended."""
    num_waiting: int
    """Requests without a replica."""
    num_for_decode: int = 0
    """Waiting requests that no decode replica has room for; the others wait for a prefill replica.
    """
    waiting_tokens: int
    oldest_wait_s: float
    num_open: int
    """Requests that replicas have."""
    prefill: PoolCount
    decode: PoolCount
    is_complete: bool = True
    """Whether all gateways reported; else there may be more traffic."""

    def pool(self, role: Role) -> PoolCount:
        return self.prefill if role is Role.PREFILL else self.decode


@dataclass(frozen=True, slots=True)
class Wanted:
    """The replicas that one decision found sufficient, with some reserve."""

    at_s: float
    prefill: int
    decode: int

    def count(self, role: Role) -> int:
        return self.prefill if role is Role.PREFILL else self.decode


@dataclass(frozen=True, slots=True)
class Memory:
    """The planner's memory from one decision to the next."""

    observations: Sequence[Observation] = ()
    wanted: Sequence[Wanted] = ()
    last_busy_s: float | None = None
    """Time at which a request was last seen anywhere."""
    load: Load | None = None
    """The last load that was not zero."""
