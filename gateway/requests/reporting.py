"""What a gateway tells others about its work, beside its own numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from baton.core.metrics import Family
from baton.core.tracing import NO_TRACES, Tracer

Face = Literal["http", "grpc"]


class PlannerPages(Protocol):
    """What the planner of the deployment says of itself."""

    async def explain(self) -> dict[str, Any]:
        """What GET /debug/planner answers. Raises Unavailable."""

    def families(self) -> Iterator[Family]:
        """Numbers of replicas, by role: planned, wanted, ready."""


class CallWatch(Protocol):
    """The watcher that is told of clients' calls as they begin and end."""

    def begins(self, face: Face) -> None: ...

    def ended(self, face: Face, path: str, method: str, status: str, seconds: float) -> None:
        """`path`: a known one, or `other`; empty of a call over gRPC, which has its method alone.
        `status`: HTTP's, or gRPC's name; empty of a client who left before any answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reporting:
    tracer: Tracer = NO_TRACES
    has_vllm_names: bool = False
    """Metrics are written under vLLM's names as well."""
    planner: PlannerPages | None = None
    calls: CallWatch | None = None


SILENT = Reporting()
