"""The seam between the gateway's faces and whatever finds replicas for their requests.

    face (HTTP, gRPC) -- Generation --> Dispatcher -- TokenUpdates --> face

A face knows text and status codes; the dispatcher knows replicas. Both know only tokens here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Protocol

from baton.core.ids import RequestId
from baton.core.messages import CachePoint, Pooling, Receipt, SamplingParams, TokenUpdate
from baton.gateway.requests.readiness import Missing, Wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What a face asks of the dispatcher."""

    request_id: RequestId
    prompt: tuple[int, ...]
    sampling: SamplingParams
    salt: bytes = b""
    tenant: str = ""
    """On whose account its blocks are."""
    cache_points: tuple[CachePoint, ...] = ()
    priority: int = 0
    """Smaller comes first."""
    pooling: Pooling | None = None
    """Set: the only update is an embedding of the prompt."""
    near: RequestId | None = None
    """A request whose prompt this one shares (another choice of it): best placed beside it."""
    time_left_s: float | None = None


class RunningGeneration(Protocol):
    """One request under way.

    Iterating yields updates, each token exactly once over all attempts; the last one has a finish
    reason. Raises Overloaded, Unavailable, DeadlineExceeded or InvalidRequest.
    """

    def __aiter__(self) -> AsyncIterator[TokenUpdate]: ...

    @property
    def receipt(self) -> Receipt:
        """The best known; complete in its prompt part from the first token on."""

    async def stop(self, num_delivered: int) -> None:
        """End the request, of which the client got `num_delivered` tokens. Safe to repeat.

        Called in every case: at the normal end, when the client has gone, at a stop string.
        """


class Dispatcher(Protocol):
    async def start(self, generation: Generation) -> RunningGeneration:
        """Raises Overloaded at once, before any work is done."""

    @property
    def max_model_len(self) -> int:
        """Tokens of prompt and output together on the replicas known now; 0 while there is none."""

    def is_ready(self) -> bool:
        """Whether at least one decode replica takes requests."""

    def missing(self, wanted: Wanted) -> tuple[Missing, ...]:
        """Roles that have fewer ready replicas than are wanted, and what each waits for."""

    async def leaks(self) -> dict[str, Any]:
        """What GET /debug/leaks answers."""

    async def status(self) -> dict[str, Any]:
        """What GET /debug/status answers."""

    async def drain(self, replica_id: str, *, is_forced: bool) -> dict[str, Any]:
        """What POST /debug/drain does and answers. Raises InvalidRequest, Unavailable."""

    async def metrics_text(self) -> str:
        """Prometheus text of the replicas, appended to the gateway's own."""
