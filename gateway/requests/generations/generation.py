"""The seam between the gateway's faces and whatever finds replicas for their requests.

    face (HTTP, gRPC) -- Generation --> Dispatcher -- TokenUpdates --> face

A face knows text and status codes; the dispatcher knows replicas. Both know only tokens here.
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
    """How long a caller lets a request take."""

    time_left_s: float
    """Seconds until the deadline of the last token."""
    max_wait_s: float | None
    """The most seconds to wait for a place; None: as long as for all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What a face asks of the dispatcher."""

    request_id: RequestId
    prompt: tuple[int, ...]
    sampling: SamplingParams
    salt: bytes = b""
    tenant: str = ""
    """The tenant on whose account its blocks are."""
    owner: str = ""
    """The owner id of the caller; callers with the same one may ask what became of it."""
    cache_points: tuple[CachePoint, ...] = ()
    priority: int = 0
    """Smaller comes first."""
    slo: Slo = NO_SLO
    """The objective of its tokens' times."""
    pooling: Pooling | None = None
    """Set: the only update is an embedding of the prompt."""
    session: str = ""
    """The conversation it belongs to; empty: found by what it begins with."""
    near: RequestId | None = None
    """A request whose prompt this one shares (another choice of it): best placed beside it."""
    time_left_s: float | None = None
    max_wait_s: float | None = None
    """It would rather be refused than wait longer for a place."""
    call: TracedCall = UNTRACED
    """What its spans are within."""
    parking: Parking | None = None
    """Its stream may go on at another gateway, which writes it anew from its tokens."""
    parked: ParkedStream | None = None
    """Its stream began at another gateway, and had come so far."""

    @property
    def known_output(self) -> tuple[int, ...]:
        """Tokens that were drawn before this gateway had it."""
        return () if self.parked is None else self.parked.request.output


class RunningGeneration(Protocol):
    """One request under way.

    Iterating yields updates, each token exactly once over all attempts; the last one has a finish
    reason. Raises Overloaded, Unavailable, DeadlineExceeded or InvalidRequest.
    """

    def __aiter__(self) -> AsyncIterator[TokenUpdate]: ...

    @property
    def receipt(self) -> Receipt:
        """The best known; complete in its prompt part from the first token on."""

    async def stop(self, num_delivered: int, *, is_finished: bool = False) -> None:
        """End the request, of which the client got `num_delivered` tokens. Safe to repeat.
        `is_finished`: they are all it wants.

        Called in every case: at the normal end, when the client has gone, at a stop string.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a request would see if it came now. Nothing is kept for it."""

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
    """None while the replica that would decode it has measured no steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRoom:
    """Places to decode, for whoever takes only what others leave."""

    num_places: int
    """Decode places that this gateway may take."""
    num_taken: int
    """Decode places taken by this gateway's requests."""
    num_awaited: int
    """Places of `num_taken` whose requests somebody waits for."""
    num_waiting: int
    """Requests without a place that somebody waits for."""


class Dispatcher(Protocol):
    @property
    def decisions(self) -> Decisions:
        """Where requests went of late, and why."""

    def captured(self) -> Iterator[bytes]:
        """What GET /debug/decisions answers: lines of JSON."""

    async def estimate(self, generation: Generation) -> Estimate:
        """Raises Unavailable if nothing can be told of it."""

    def progress(self, generation: Generation) -> PromptProgress | None:
        """How far the prompt is. None once its first token is there, and if nothing is known."""

    async def start(self, generation: Generation) -> RunningGeneration:
        """Raises Overloaded at once, before any work is done."""

    async def take_stream(self, wanted: TakeStream) -> ParkedStream | None:
        """What replicas know of a stream of another gateway; it ends where it runs."""

    def leave(self) -> None:
        """This gateway stops: streams that others can go on with are not taken back from now on."""

    @property
    def max_model_len(self) -> int:
        """Tokens of prompt and output together on the replicas known now; 0 while there is none."""

    def room(self) -> DecodeRoom:
        """How much is left for what nobody waits for."""

    def is_ready(self) -> bool:
        """Whether at least one decode replica takes requests, or is started for who waits."""

    def trouble(self) -> str:
        """Why no requests are taken, while none are; for everybody."""

    def missing(self, wanted: Wanted) -> tuple[Missing, ...]:
        """Roles that have fewer ready replicas than are wanted, and what each waits for."""

    async def leaks(self) -> dict[str, Any]:
        """What GET /debug/leaks answers."""

    async def status(self) -> dict[str, Any]:
        """What GET /debug/status answers."""

    async def drain(self, replica_id: str, *, is_forced: bool) -> dict[str, Any]:
        """What POST /debug/drain does and answers. Raises InvalidRequest, Unavailable."""

    async def undrain(self, replica_id: str) -> dict[str, Any]:
        """What POST /debug/undrain does and answers. Raises InvalidRequest, Unavailable."""

    async def flip(self, replica: str, to: str) -> dict[str, Any]:
        """What POST /debug/flip does and answers. Raises InvalidRequest, Unavailable."""

    async def reset_prefix_cache(self, replica_id: str) -> dict[str, int]:
        """Have a replica, or all if it is empty, forget what is cached: how many blocks each.
        Raises InvalidRequest, Unavailable."""

    def metrics(self) -> Iterator[Family]:
        """What it has to tell Prometheus besides what is counted of requests."""
