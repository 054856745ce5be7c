"""Spans of requests, for whoever has them collected: one a phase, in whatever process it happens.

    call -> generate -> attempt -> decode -> ask for prefill -> prefill -> queue, compute
                          |          `- transfer
                          `- place
            a further attempt is a span beside the first, and links to it

Between processes a span is named by its context, as the W3C has it. Where nothing is collected
there is `NO_TRACES`, whose spans cost a call that does nothing.
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
    """What tracing systems on the way have to tell each other: handed on as it came."""

    @property
    def trace_id(self) -> str:
        """The trace id, for logs; empty if there is none."""
        return self.traceparent.split("-")[1] if self.traceparent.count("-") == 3 else ""


NO_CONTEXT = TraceContext()


class Span(Protocol):
    @property
    def context(self) -> TraceContext:
        """What a child in another process is told."""

    @property
    def is_recording(self) -> bool:
        """Whether anybody will read its attributes."""

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
    """What the generations of one call of a client are told of it."""

    span: Span = NO_SPAN
    operation: str = ""
    """As OpenTelemetry's conventions for generative AI name it: `chat`."""


UNTRACED = TracedCall()
