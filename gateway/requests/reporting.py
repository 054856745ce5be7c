"""What a gateway tells others about its work, beside its own numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from baton.core.metrics import Family
from baton.core.tracing import NO_TRACES, Tracer


class PlannerPages(Protocol):
    """What the planner of the deployment says of itself."""

    async def explain(self) -> dict[str, Any]:
        """What GET /debug/planner answers. Raises Unavailable."""

    def families(self) -> Iterator[Family]:
        """Numbers of replicas, by role: planned, wanted, ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reporting:
    tracer: Tracer = NO_TRACES
    has_vllm_names: bool = False
    """Metrics are written under vLLM's names as well."""
    planner: PlannerPages | None = None


SILENT = Reporting()
