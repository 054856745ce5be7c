"""The span of one client call over any API; parent of its generations' spans."""

from __future__ import annotations

from baton.core.tracing import NO_SPAN, NOTHING, UNTRACED, Attributes, TraceContext, TracedCall
from baton.gateway.requests.gateway import Gateway
from baton.gateway.requests.request_ids import public_request_id


def begin_call(
    gateway: Gateway,
    operation: str,
    *,
    parent: TraceContext,
    attributes: Attributes = NOTHING,
) -> TracedCall:
    """`parent`: the caller's trace context."""
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
        }
        span.set({**attributes, **about})
    return TracedCall(span, operation)


def named_call(call: TracedCall, given: str) -> str:
    """The request id given in the body, which is set on the span, too. Raises InvalidRequest."""
    request_id = public_request_id(given, field="request_id")
    if call.span.is_recording:
        call.span.set({"baton.request_id": request_id})
    return request_id
