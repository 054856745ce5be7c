"""What happens to every HTTP request before its path is looked at: its id, its key, its caller.

    public port   /v1/* and the like need a key, where keys are needed; operators' paths are unknown
    admin port    everything needs an operator's, and no web page of elsewhere gets in

A request gets an id (its own `x-request-id` if it has one), which its response carries, and what
its key's tenant has left of its limits. While the gateway drains, responses ask the client to
connect anew, elsewhere.
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
"""Where clients of vLLM, Jina and Cohere look for the same."""
POOLING_PATHS = ("/v1/pooling", "/pooling")
GUARDED = ("/v1/", "/v2/", "/tokenize", "/detokenize", "/classify", "/score", "/rerank", "/pooling")
"""Public paths that need a key, where keys are needed. Probes have none to show."""
OPEN = ("/", "/version", "/console")
"""Paths of the admin port that need no key, and those below the last: pages that tell of nothing,
which browsers could not get otherwise."""
OPERATED = ("/debug/", "/metrics")
"""What only the admin port has: they tell of all tenants, or change the deployment."""
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
"""What a path asks of the model, as OpenTelemetry names it."""
REQUEST_ID = "x-request-id"
ANTHROPICS_REQUEST_ID = "request-id"
"""The request's id once more, for Anthropic's clients, which look for it there."""
IGNORED = "x-baton-ignored"
"""Fields of the body, and headers for an objective, that have no effect."""
MAX_TOLD = 2048
"""Characters of them; `...` stands for the rest."""
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
"""Ignored fields counted by their names; others are counted together, for anybody can make some
up."""
LIMIT_HEADERS = tuple(
    f"x-ratelimit-{what}-{unit}"
    for unit in (REQUESTS, TOKENS)
    for what in ("limit", "remaining", "reset")
)
"""Which answers with a limited key carry, as OpenAI's do."""


class Edge:
    def __init__(
        self, app: ASGIApp, gateway: Gateway, paths: frozenset[str], *, is_admin: bool = False
    ) -> None:
        """`paths` are counted by their names; others together, for anybody can make some up."""
        self._app = app
        self._gateway = gateway
        self._paths = paths
        self._is_admin = is_admin
        self._has_told_operators = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._serve(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Whoever watches is told of calls to the API: probes and pages are none."""
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
                raise  # the answer has begun: the connection is cut
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
        if path.startswith(OPERATED) and not self._has_told_operators:
            self._has_told_operators = True  # once: strangers may ask for it all day
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
        told = count_ignored(self._gateway, fields)
        if told:
            yield IGNORED.encode(), _listed(told).encode()


def count_ignored(gateway: Gateway, fields: Sequence[str]) -> tuple[str, ...]:
    """Each of them once, as they are told."""
    told = tuple(dict.fromkeys(fields))
    for field in told:
        gateway.metrics.ignored_fields.add(1, field if field in COUNTED_FIELDS else "other")
    return told


def _listed(fields: Sequence[str]) -> str:
    """As many as a client's limit of headers has room for."""
    text = ", ".join(fields)
    if len(text) <= MAX_TOLD:
        return text
    return f"{text[:MAX_TOLD].rpartition(', ')[0]}, ..."


def _fault(status: str) -> str:
    """What of it is the server's, as OpenTelemetry has it."""
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
    """As OpenAI writes it: `20ms`, `1.5s`, `6m0s`."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1e3)}ms"
    minutes, rest_s = divmod(math.ceil(seconds * 10) / 10, 60)
    return f"{minutes:.0f}m{rest_s:g}s" if minutes else f"{rest_s:g}s"
