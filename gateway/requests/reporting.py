"""What a gateway tells others about its work, beside its own numbers."""

from __future__ import annotations

from dataclasses import dataclass

from baton.core.tracing import NO_TRACES, Tracer


@dataclass(frozen=True, slots=True, kw_only=True)
class Reporting:
    tracer: Tracer = NO_TRACES
    has_vllm_names: bool = False
    """Metrics are written under vLLM's names as well."""


SILENT = Reporting()
