"""Spans of requests for tracing: one per phase, in the process where it happens.

    call -> generate -> attempt -> decode -> ask for prefill -> prefill -> queue, compute
                          |          `- transfer
                          `- place
            a further attempt is a sibling span, with a link to the first

Between processes a span is named by its W3C trace context. Without a collector, `NO_TRACES` is
used, whose spans cost an empty call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

Kind = Literal["server", "client", "internal"]
Value = str | int | float | bool | tuple[str, ...]
Attributes = Mapping[str, Value]

NOTHING: Attributes = {}


class TraceContext(NamedTuple):
    """A span of another process, by the two headers of the W3C's recommendation."""

    traceparent: str = ""
    """Empty: nothing is collected."""
    tracestate: str = ""
    """W3C trace state of other tracing systems: passed on unchanged."""

    @property
    def trace_id(self) -> str:
        """The trace id, for logs; empty if there is none."""
        return self.traceparent.split("-")[1] if self.traceparent.count("-") == 3 else ""


NO_CONTEXT = TraceContext()


class Span(Protocol):
    @property
    def context(self) -> TraceContext:
        """The context for a child span in another process."""

    @property
    def is_recording(self) -> bool:
        """Whether its attributes will be read."""

    def child(
        self,
        name: str,
        kind: Kind = "internal",
        *,
        links: Sequence[TraceContext] = (),
        attributes: Attributes = NOTHING,
    ) -> Span:
        """A phase within this one, which begins now."""

    def record(
        self,
        name: str,
        seconds: float,
        *,
        ended_ago_s: float = 0.0,
        attributes: Attributes = NOTHING,
    ) -> None:
        """A phase within this one that is over."""

    def set(self, attributes: Attributes) -> None: ...

    def end(self, error: str = "") -> None:
        """Safe to repeat: the first time counts."""


class Tracer(Protocol):
    def start(
        self,
        name: str,
        parent: TraceContext = NO_CONTEXT,
        kind: Kind = "internal",
        *,
        attributes: Attributes = NOTHING,
    ) -> Span:
        """`parent` is a context, also of a stranger: what cannot be read begins a new trace."""

    def close(self) -> None:
        """Send what is pending."""


class _NoSpan:
    context = NO_CONTEXT
    is_recording = False

    def child(
        self,
        name: str,
        kind: Kind = "internal",
        *,
        links: Sequence[TraceContext] = (),
        attributes: Attributes = NOTHING,
    ) -> Span:
        return self

    def record(
        self,
        name: str,
        seconds: float,
        *,
        ended_ago_s: float = 0.0,
        attributes: Attributes = NOTHING,
    ) -> None:
        pass

    def set(self, attributes: Attributes) -> None:
        pass

    def end(self, error: str = "") -> None:
        pass


class _NoTraces:
    def start(
        self,
        name: str,
        parent: TraceContext = NO_CONTEXT,
        kind: Kind = "internal",
        *,
        attributes: Attributes = NOTHING,
    ) -> Span:
        return NO_SPAN

    def close(self) -> None:
        pass


NO_SPAN: Span = _NoSpan()
NO_TRACES: Tracer = _NoTraces()


class TracedCall(NamedTuple):
    """The tracing context that the generations of one client call share."""

    span: Span = NO_SPAN
    operation: str = ""
    """Name by OpenTelemetry's conventions for generative AI: `chat`."""


UNTRACED = TracedCall()
