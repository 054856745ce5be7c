"""Reports of a gateway besides its own metrics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from baton.core.metrics import Family
from baton.core.tracing import NO_TRACES, Tracer

Face = Literal["http", "grpc"]


class PlannerPages(Protocol):
    """The planner's pages."""

    async def explain(self) -> dict[str, Any]:
        """The answer of GET /debug/planner. Raises Unavailable."""

    def families(self) -> Iterator[Family]:
        """Numbers of replicas, by role: planned, wanted, ready."""


class CallWatch(Protocol):
    """Called when a client's call begins and ends."""

    def begins(self, face: Face) -> None: ...

    def ended(self, face: Face, path: str, method: str, status: str, seconds: float) -> None:
        """`path`: a known path, or `other`; empty for gRPC, which only has a method. `status`: the
        HTTP code, or gRPC's name; empty if the client left before the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reporting:
    tracer: Tracer = NO_TRACES
    has_vllm_names: bool = False
    """Metrics are written under vLLM's names as well."""
    planner: PlannerPages | None = None
    calls: CallWatch | None = None


SILENT = Reporting()
