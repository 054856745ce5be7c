"""The span of one call of a client, by whatever face: what its generations are within."""

from __future__ import annotations

from baton.core.tracing import NO_SPAN, NOTHING, UNTRACED, Attributes, TracedCall
from baton.gateway.requests.gateway import Gateway


def begin_call(
    gateway: Gateway,
    operation: str,
    request_id: str,
    *,
    parent: str,
    attributes: Attributes = NOTHING,
) -> TracedCall:
    """`parent`: the caller's own span, if it has one."""
    model = gateway.model.name
    span = gateway.tracer.start(f"{operation} {model}", parent, "server")
    if span is NO_SPAN:
        return UNTRACED
    if span.is_recording:
        about = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "baton",
            "gen_ai.request.model": model,
            "gen_ai.response.model": model,
            "baton.request_id": request_id,
        }
        span.set({**attributes, **about})
    return TracedCall(span, operation)
