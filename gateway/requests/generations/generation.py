"""The interface between the gateway's APIs and the dispatcher, which finds replicas.

    API (HTTP, gRPC) -- Generation --> Dispatcher -- TokenUpdates --> API

An API handles text and status codes, the dispatcher replicas; between them pass only tokens.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from baton.core.ids import ReplicaId, RequestId
from baton.core.messages import CachePoint, ParkedStream, Pooling, Receipt, TokenUpdate
from baton.core.metrics import Family
from baton.core.parking import Parking, TakeStream
from baton.core.sampling import SamplingParams
from baton.core.tracing import UNTRACED, TracedCall
from baton.gateway.requests.generations.prompt_progress import PromptProgress
from baton.gateway.requests.readiness import Missing, Wanted
from baton.router.explain.decisions import Decisions
from baton.router.fairness.slo import NO_SLO, Slo
from baton.router.speeds.prediction_errors import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLimits:
    """Time limits of a request."""

    time_left_s: float
    """Seconds until the last token must have come."""
    max_wait_s: float | None
    """The most seconds to wait for a place; None: until the deadline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One generation, as the dispatcher is asked for it."""

    request_id: RequestId
    prompt: tuple[int, ...]
    sampling: SamplingParams
    salt: bytes = b""
    adapter: str = ""
    """The LoRA adapter that it is computed with; empty: the model alone."""
    tenant: str = ""
    """The tenant to which its blocks are charged."""
    owner: str = ""
    """The owner id of the caller; callers with the same id may query it."""
    cache_points: tuple[CachePoint, ...] = ()
    priority: int = 0
    """Smaller comes first."""
    slo: Slo = NO_SLO
    """Its latency objective."""
    pooling: Pooling | None = None
    """Set: the only update is the prompt's embedding."""
    session: str = ""
    """The key of its conversation; empty: identified by its prefix."""
    near: RequestId | None = None
    """Another choice of the same prompt, beside which it is best placed."""
    time_left_s: float | None = None
    max_wait_s: float | None = None
    """The longest wait for a place; it is refused if it would wait longer. None: no limit."""
    call: TracedCall = UNTRACED
    """The traced call, parent of its spans."""
    parking: Parking | None = None
    """Set: another gateway may resume its stream, rewriting it from its tokens."""
    parked: ParkedStream | None = None
    """Set: its stream began at another gateway; this is its state there."""

    @property
    def known_output(self) -> tuple[int, ...]:
        """Tokens generated before this gateway had it."""
        return () if self.parked is None else self.parked.request.output


class RunningGeneration(Protocol):
    """A running request. Iterating yields updates, each token exactly once over all attempts; the
    last one has a finish reason. Raises Overloaded, Unavailable, DeadlineExceeded or
    InvalidRequest.
    """

    def __aiter__(self) -> AsyncIterator[TokenUpdate]: ...

    @property
    def receipt(self) -> Receipt:
        """The receipt so far; complete for the prompt from the first token on."""

    async def stop(self, num_delivered: int, *, is_finished: bool = False) -> None:
        """End the request; the client has `num_delivered` tokens. Safe to repeat. `is_finished`: it
        needs no more. Always called: at the normal end, after a disconnect, at a stop string.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Predictions for a request that would arrive now. Nothing is reserved."""

    num_cached_tokens: int
    """Prompt tokens in the cache of the replica that would compute the prompt."""
    num_prefill_tokens: int
    """Prompt tokens that would be computed."""
    computes: ReplicaId
    decodes: ReplicaId
    wait_s: float
    """Seconds until the prompt's turn."""
    work_s: float
    """Seconds to compute the prompt."""
    ttft_s: Interval
    itl_s: Interval | None
    """Predicted seconds between tokens; None while that replica has measured no steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRoom:
    """Decode places, for work that uses only what interactive requests leave."""

    num_places: int
    """Decode places that this gateway may take."""
    num_taken: int
    """Decode places taken by this gateway's requests."""
    num_awaited: int
    """Places of `num_taken` with interactive requests."""
    num_waiting: int
    """Interactive requests without a place."""


class Dispatcher(Protocol):
    @property
    def decisions(self) -> Decisions:
        """Recent placement decisions."""

    def captured(self) -> Iterator[bytes]:
        """The answer of GET /debug/decisions: lines of JSON."""

    async def estimate(self, generation: Generation) -> Estimate:
        """Raises Unavailable if no prediction is possible."""

    def progress(self, generation: Generation) -> PromptProgress | None:
        """Progress of the prompt; None after its first token, and if unknown."""

    async def start(self, generation: Generation) -> RunningGeneration:
        """Raises Overloaded at once, before any work is done."""

    async def take_stream(self, wanted: TakeStream) -> ParkedStream | None:
        """Take over a stream of another gateway from the replicas; it ends where it runs."""

    def leave(self) -> None:
        """This gateway stops: resumable streams are no longer cancelled, so that others can take
        over."""

    @property
    def max_model_len(self) -> int:
        """Tokens of prompt and output together on the replicas known now; 0 while there is none."""

    def room(self) -> DecodeRoom:
        """The capacity that is left for background work."""

    def is_ready(self) -> bool:
        """Whether a decode replica accepts requests, or is started for waiting ones."""

    def trouble(self) -> str:
        """Why no requests are accepted, in words safe for clients; empty while some are."""

    def missing(self, wanted: Wanted) -> tuple[Missing, ...]:
        """Roles with fewer ready replicas than wanted, and the reasons."""

    async def leaks(self) -> dict[str, Any]:
        """The answer of GET /debug/leaks."""

    async def status(self) -> dict[str, Any]:
        """The answer of GET /debug/status."""

    async def drain(self, replica_id: str, *, is_forced: bool) -> dict[str, Any]:
        """Handles POST /debug/drain. Raises InvalidRequest, Unavailable."""

    async def undrain(self, replica_id: str) -> dict[str, Any]:
        """Handles POST /debug/undrain. Raises InvalidRequest, Unavailable."""

    async def flip(self, replica: str, to: str) -> dict[str, Any]:
        """Handles POST /debug/flip. Raises InvalidRequest, Unavailable."""

    async def reset_prefix_cache(self, replica_id: str) -> dict[str, int]:
        """Empty the prefix cache of a replica, or of all if the id is empty; return the blocks
        dropped. Raises InvalidRequest, Unavailable."""

    def metrics(self) -> Iterator[Family]:
        """The dispatcher's Prometheus metrics."""
