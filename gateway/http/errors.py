"""Baton's errors as HTTP: the one place where they become a status and an OpenAI error body."""

from __future__ import annotations

import asyncio
import logging
import math
from contextlib import suppress
from typing import NamedTuple

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from baton.core.errors import (
    BatonError,
    Cancelled,
    ContextExceeded,
    DeadlineExceeded,
    Forbidden,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    RateLimited,
    RequestNotFound,
    RequestTooLarge,
    StreamNotFound,
    Unauthenticated,
    Unavailable,
)
from baton.gateway.http.request_body import RequestTooSlow
from baton.gateway.requests.request_ids import logged_request_id

log = logging.getLogger(__name__)


class Translation(NamedTuple):
    status: int
    type: str
    code: str | None


TRANSLATIONS: dict[type[BaseException], Translation] = {
    InvalidRequest: Translation(400, "invalid_request_error", None),
    ContextExceeded: Translation(400, "invalid_request_error", "context_length_exceeded"),
    Unauthenticated: Translation(401, "invalid_request_error", "invalid_api_key"),
    Forbidden: Translation(403, "invalid_request_error", "permission_denied"),
    ModelNotFound: Translation(404, "invalid_request_error", "model_not_found"),
    StreamNotFound: Translation(404, "invalid_request_error", "stream_not_found"),
    RequestNotFound: Translation(404, "invalid_request_error", "request_not_found"),
    RequestTooLarge: Translation(413, "invalid_request_error", "request_too_large"),
    Overloaded: Translation(429, "rate_limit_error", "overloaded"),
    RateLimited: Translation(429, "rate_limit_error", "rate_limit_exceeded"),
    RequestTooSlow: Translation(408, "invalid_request_error", "request_timeout"),
    Cancelled: Translation(499, "invalid_request_error", "cancelled"),
    Unavailable: Translation(503, "service_unavailable_error", "unavailable"),
    DeadlineExceeded: Translation(504, "timeout_error", "deadline_exceeded"),
}
LINGER_S = 5.0
INTERNAL = Translation(500, "server_error", "internal_error")
ROUTING_CODES = {404: "not_found", 405: "method_not_allowed"}


class ErrorDetail(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct):
    error: ErrorDetail


def translate(error: BaseException) -> Translation:
    """By the nearest class that has a translation; what nobody raised on purpose is a 500."""
    for kind in type(error).__mro__:
        if kind in TRANSLATIONS:
            return TRANSLATIONS[kind]
    return INTERNAL


def error_body(error: BaseException) -> ErrorBody:
    """What went wrong inside is logged here, and stays here."""
    translation = translate(error)
    if translation is INTERNAL:
        log.error("a request failed", exc_info=error, extra={"request_id": logged_request_id.get()})
        message = "the server failed; its log says why"
    else:
        message = str(error)
    param = error.field if isinstance(error, InvalidRequest) else None
    return ErrorBody(ErrorDetail(message, translation.type, param, translation.code))


def error_response(error: BaseException) -> Response:
    headers: dict[str, str] = {}
    if isinstance(error, Overloaded):
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
    if isinstance(error, Unauthenticated):
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, RequestTooSlow):
        headers["connection"] = "close"
    status, body = translate(error).status, error_body(error)
    if isinstance(error, RequestTooLarge):
        headers["connection"] = "close"
        return LingeringResponse(msgspec.json.encode(body), status, headers, "application/json")
    return json_response(body, status=status, headers=headers)


class LingeringResponse(Response):
    """Closes the connection a little after answering.

    Closing it while the client still sends would reset it, and the answer with it.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code}
        await send({**start, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while (await receive()).get("more_body", False):
                    pass
        await send({"type": "http.response.body", "body": b""})


def json_response(
    content: object, *, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    return Response(msgspec.json.encode(content), status, headers, media_type="application/json")


async def on_baton_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, BatonError)
    return error_response(error)


async def on_routing_error(request: Request, error: Exception) -> Response:
    """Unknown paths and wrong methods."""
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    code = ROUTING_CODES.get(error.status_code)
    body = ErrorBody(ErrorDetail(message, "invalid_request_error", None, code))
    return json_response(body, status=error.status_code, headers=dict(error.headers or {}))


async def on_internal_error(request: Request, error: Exception) -> Response:
    return error_response(error)
