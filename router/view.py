"""What a gateway knows of its replicas when it places one request: frozen values.

Whatever a policy needs to know belongs here; it sees nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from baton.core.messages import Capacity, ReplicaInfo
from baton.router.candidate import Candidate
from baton.router.pulling import PullRates


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaView:
    """What the gateway knows of one replica, for one request."""

    info: ReplicaInfo
    candidate: Candidate
    """What it has to compute, as far as this gateway can tell: kept from request to request."""
    is_connected: bool = True
    num_open: int = 0
    """Requests this gateway has there."""
    num_cached_tokens: int = 0
    """Leading tokens of this prompt that are in its prefix cache."""
    num_expected_tokens: int = 0
    """Leading tokens of this prompt that other requests placed there bring along, or brought."""
    capacity: Capacity | None = None
    """The replica's own last word; of a decode replica, while it is connected."""
    capacity_age_s: float | None = None
    """How long ago it was said. Replicas say something each second, so much more is a sign."""

    @property
    def num_queued_tokens(self) -> int:
        """Tokens waiting to be computed there, by its own word."""
        return 0 if self.capacity is None else self.capacity.num_queued_tokens

    @property
    def num_soon_tokens(self) -> int:
        return max(self.num_cached_tokens, self.num_expected_tokens)

    @property
    def has_room(self) -> bool:
        max_open = self.info.max_open if self.capacity is None else self.capacity.max_open
        return self.num_open < max_open

    @property
    def is_draining(self) -> bool:
        return not self.info.is_ready or (self.capacity is not None and self.capacity.is_draining)

    @property
    def is_open(self) -> bool:
        """Whether a decode replica would take one more request."""
        return self.is_connected and self.has_room and not self.is_draining


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    decode: tuple[ReplicaView, ...] = ()
    prefill: tuple[ReplicaView, ...] = ()
    rates: PullRates = field(default_factory=lambda: PullRates(is_enabled=False))
    """What it costs to fetch what one of them has to another, and to compute it there."""
