"""Middleware for every HTTP request: its id, its API key, its caller.

    public port   /v1/* and the like need a key, if keys are configured; operators' paths are
    unknown admin port    everything needs an operator's key, and web pages of other origins are
    refused

The response carries the request's id (the client's `x-request-id`, if it sent one) and what its
tenant has left of its rate limits. While the gateway drains, responses close the connection, so
that clients connect elsewhere.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from baton.core.clock import monotonic
from baton.core.errors import BatonError
from baton.core.tracing import UNTRACED, TraceContext, TracedCall
from baton.gateway.access.api_keys import ANYBODY, Caller, shown_key
from baton.gateway.access.call_log import MAX_PATH, EndedCall, log_call
from baton.gateway.access.objectives import (
    CLASS_HEADER,
    TPOT_HEADER,
    TTFT_HEADER,
    objective_of,
)
from baton.gateway.access.rate_limits import REQUESTS, TOKENS, Allowance
from baton.gateway.http.anthropic_errors import is_messages
from baton.gateway.http.errors import error_response
from baton.gateway.http.web_pages import check_no_web_page
from baton.gateway.requests.call_span import begin_call
from baton.gateway.requests.gateway import Gateway
from baton.gateway.requests.request_ids import public_request_id
from baton.router.fairness.slo import NO_SLO

log = logging.getLogger(__name__)

CLASSIFY_PATHS = ("/v1/classify", "/classify")
SCORE_PATHS = ("/v1/score", "/score")
RERANK_PATHS = ("/v1/rerank", "/v2/rerank", "/rerank")
"""The paths of the same endpoint in vLLM's, Jina's and Cohere's APIs."""
POOLING_PATHS = ("/v1/pooling", "/pooling")
GUARDED = ("/v1/", "/v2/", "/tokenize", "/detokenize", "/classify", "/score", "/rerank", "/pooling")
"""Public paths that need a key, if keys are configured. Probes are not among them."""
OPEN = ("/", "/version", "/console")
"""Paths of the admin port that need no key (and paths below the last): pages without data, which
browsers load before they have a key."""
OPERATED = ("/debug/", "/metrics")
"""Paths of the admin port alone: they show all tenants, or change the deployment."""
OPERATIONS = {
    "/v1/completions": "text_completion",
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/embeddings": "embeddings",
    **dict.fromkeys(POOLING_PATHS, "embeddings"),
    **dict.fromkeys(CLASSIFY_PATHS, "classify"),
    **dict.fromkeys(SCORE_PATHS, "score"),
    **dict.fromkeys(RERANK_PATHS, "rerank"),
}
"""OpenTelemetry's operation name of each path."""
REQUEST_ID = "x-request-id"
ANTHROPICS_REQUEST_ID = "request-id"
"""The request id under the name that Anthropic's clients read."""
IGNORED = "x-baton-ignored"
"""Names of body fields and objective headers that have no effect."""
MAX_LISTED = 2048
"""Characters of that header; `...` stands for the rest."""
COUNTED_FIELDS = frozenset(
    {
        "betas",
        "enable_thinking",
        "fallbacks",
        "max_tool_calls",
        "metadata",
        "output_config.task_budget",
        "prediction",
        "prompt_cache_options",
        "prompt_cache_retention",
        "reasoning",
        "reasoning_effort",
        "safety_identifier",
        "service_tier",
        "speed",
        "store",
        "thinking",
        "user",
        "verbosity",
        CLASS_HEADER,
        TPOT_HEADER,
        TTFT_HEADER,
    }
)
"""Ignored fields that are counted by name; others are counted together, since clients can send any
name."""
LIMIT_HEADERS = tuple(
    f"x-ratelimit-{what}-{unit}"
    for unit in (REQUESTS, TOKENS)
    for what in ("limit", "remaining", "reset")
)
"""OpenAI's rate-limit headers, on answers to keys with limits."""


class Edge:
    def __init__(
        self, app: ASGIApp, gateway: Gateway, paths: frozenset[str], *, is_admin: bool = False
    ) -> None:
        """`paths` are counted by name; others together, since clients can send any path."""
        self._app = app
        self._gateway = gateway
        self._paths = paths
        self._is_admin = is_admin
        self._has_warned_operators = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._serve(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request. The call watcher sees API calls only, no probes or pages."""
        watch, path = self._gateway.call_watch, scope["path"]
        if watch is None or self._is_admin or not path.startswith(GUARDED):
            await self._answer(scope, receive, send)
            return
        began_s, status = monotonic(), ""

        async def watched_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        watch.begins("http")
        try:
            await self._answer(scope, receive, watched_send)
        finally:
            seconds = monotonic() - began_s
            watch.ended("http", self._name_of(path), scope["method"], status, seconds)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        own_headers: list[tuple[bytes, bytes]] = []
        answer_headers: list[tuple[bytes, bytes]] = []
        ignored_fields: list[str] = []
        caller, call, slo, request_id, status = ANYBODY, UNTRACED, NO_SLO, "", ""
        began_s = monotonic()

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
                path = self._name_of(scope["path"])
                self._gateway.metrics.calls.add(1, path, status)
                limits = self._gateway.limits.allowances(caller.tenant)
                message["headers"] = [
                    *message["headers"],
                    *own_headers,
                    *answer_headers,
                    *self._ignored(ignored_fields),
                    *limit_headers(limits),
                ]
                if call.span.is_recording:
                    call.span.set({"http.response.status_code": message["status"]})
                if self._gateway.is_draining:
                    message["headers"].append((b"connection", b"close"))
            await send(message)

        try:
            request_id = public_request_id(headers.get(REQUEST_ID), field=REQUEST_ID)
            own_headers.extend(_id_headers(scope["path"], request_id))
            caller = self._admitted(scope["path"], headers)
            if scope["path"] in OPERATIONS:
                slo = objective_of(self._gateway.config, caller, headers.get, ignored_fields)
                call = self._begin_call(scope, headers, request_id)
        except BatonError as error:
            refusal = error_response(error, scope["path"])
            await refusal(scope, receive, send_with_headers)
            self._log(scope, status, monotonic() - began_s, request_id, caller)
            return
        if call is not UNTRACED or slo is not NO_SLO:
            caller = replace(caller, call=call, slo=slo)
        scope.setdefault("state", {}).update(
            request_id=request_id,
            caller=caller,
            answer_headers=answer_headers,
            ignored_fields=ignored_fields,
        )
        fault = ""
        try:
            await self._app(scope, receive, send_with_headers)
        except Exception as error:
            fault = type(error).__name__
            if status:
                raise  # the answer has begun: close the connection
            failure = error_response(error, scope["path"])
            await failure(scope, receive, send_with_headers)
        finally:
            call.span.end(fault or _fault(status))
            self._log(scope, status, monotonic() - began_s, request_id, caller)

    def _admitted(self, path: str, headers: Headers) -> Caller:
        """Raises Unauthenticated, Forbidden."""
        keys = self._gateway.keys
        if self._is_admin:
            check_no_web_page(headers, has_keys=bool(keys))
            if path in OPEN or path.startswith("/console/"):
                return ANYBODY
            caller = keys.check(shown_key(headers))
            if path == "/metrics":
                caller.check_watches()
            else:
                caller.check_operates(path)
            return caller
        if path.startswith(GUARDED):
            caller = keys.check(shown_key(headers))
            caller.check_infers()
            return caller
        if path.startswith(OPERATED) and not self._has_warned_operators:
            self._has_warned_operators = True  # logged once: clients without a key can repeat it
            log.info(
                "%s was asked for at the public port, which has no such pages: they are at "
                "gateway.admin_host and gateway.admin_port",
                path[:MAX_PATH],
            )
        return ANYBODY

    def _log(
        self, scope: Scope, status: str, seconds: float, request_id: str, caller: Caller
    ) -> None:
        is_change = self._is_admin and scope["method"] != "GET"
        log_call(
            EndedCall(
                method=scope["method"],
                path=scope["path"],
                status=status,
                seconds=seconds,
                request_id=request_id,
                caller=caller,
                is_change=is_change,
            ),
            has_access_log=self._gateway.config.access_log,
        )

    def _name_of(self, path: str) -> str:
        return path if path in self._paths else "other"

    def _begin_call(self, scope: Scope, headers: Headers, request_id: str) -> TracedCall:
        """Begin the span of a client's call to the model; callers without a key are not traced."""
        return begin_call(
            self._gateway,
            OPERATIONS[scope["path"]],
            parent=TraceContext(
                headers.get("traceparent", ""), ",".join(headers.getlist("tracestate"))
            ),
            attributes={
                "http.request.method": scope["method"],
                "http.route": scope["path"],
                "url.path": scope["path"],
                "baton.request_id": request_id,
            },
        )

    def _ignored(self, fields: Sequence[str]) -> Iterator[tuple[bytes, bytes]]:
        counted = count_ignored(self._gateway, fields)
        if counted:
            yield IGNORED.encode(), _listed(counted).encode()


def count_ignored(gateway: Gateway, fields: Sequence[str]) -> tuple[str, ...]:
    """Count each ignored field once per request."""
    counted = tuple(dict.fromkeys(fields))
    for field in counted:
        gateway.metrics.ignored_fields.add(1, field if field in COUNTED_FIELDS else "other")
    return counted


def _listed(fields: Sequence[str]) -> str:
    """The fields as a header value, cut to what clients accept."""
    text = ", ".join(fields)
    if len(text) <= MAX_LISTED:
        return text
    return f"{text[:MAX_LISTED].rpartition(', ')[0]}, ..."


def _fault(status: str) -> str:
    """OpenTelemetry's error type: set for server errors only."""
    return status if status.startswith("5") else ""


def _id_headers(path: str, request_id: str) -> Iterator[tuple[bytes, bytes]]:
    names = (REQUEST_ID, ANTHROPICS_REQUEST_ID) if is_messages(path) else (REQUEST_ID,)
    for name in names:
        yield name.encode(), request_id.encode()


def limit_headers(allowances: Iterable[Allowance]) -> Iterator[tuple[bytes, bytes]]:
    for one in allowances:
        values = {
            "limit": str(one.limit),
            "remaining": str(one.remaining),
            "reset": duration(one.reset_s),
        }
        for what, value in values.items():
            yield f"x-ratelimit-{what}-{one.unit}".encode(), value.encode()


def duration(seconds: float) -> str:
    """A duration in OpenAI's format: `20ms`, `1.5s`, `6m0s`."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1e3)}ms"
    minutes, rest_s = divmod(math.ceil(seconds * 10) / 10, 60)
    return f"{minutes:.0f}m{rest_s:g}s" if minutes else f"{rest_s:g}s"
