"""Errors as HTTP responses, in the format of the API that was called; OpenAI's by default."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Protocol

import msgspec
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from baton.core.errors import (
    BatonError,
    InvalidRequest,
    Overloaded,
    RequestTooLarge,
    RequestTooSlow,
    Unauthenticated,
)
from baton.gateway.http.anthropic_errors import MessagesErrors, is_messages
from baton.gateway.http.translations import INTERNAL, TRANSLATIONS, public_message, translate

LINGER_S = 5.0
MAX_PATH = 100
"""Characters of an unknown path that are compared with those there are: it takes this event loop,
and longer ones are like none of them."""
ROUTING_CODES = {404: "not_found", 405: "method_not_allowed"}


class ErrorDetail(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct):
    error: ErrorDetail


class ErrorShape(Protocol):
    """An API's format of errors."""

    @property
    def body(self) -> type[msgspec.Struct]: ...

    def status(self, error: BaseException) -> int: ...

    def write(self, error: BaseException) -> msgspec.Struct: ...

    def of_status(self, status: int, message: str) -> msgspec.Struct:
        """The error body for an unknown path or method."""

    def names_by_status(self) -> Mapping[int, list[str]]:
        """The error codes by status, of all errors that can occur."""


class OpenAiErrors:
    body = ErrorBody

    def status(self, error: BaseException) -> int:
        return translate(error).status

    def write(self, error: BaseException) -> ErrorBody:
        return error_body(error)

    def of_status(self, status: int, message: str) -> ErrorBody:
        code = ROUTING_CODES.get(status)
        return ErrorBody(ErrorDetail(message, "invalid_request_error", None, code))

    def names_by_status(self) -> Mapping[int, list[str]]:
        names: dict[int, list[str]] = {}
        for one in (*TRANSLATIONS.values(), INTERNAL):
            names.setdefault(one.status, []).append(one.code or one.type)
        return names


OPENAI, MESSAGES = OpenAiErrors(), MessagesErrors()


def error_shape(path: str) -> ErrorShape:
    return MESSAGES if is_messages(path) else OPENAI


def error_body(error: BaseException) -> ErrorBody:
    translation, message = translate(error), public_message(error)
    param = error.field if isinstance(error, InvalidRequest) else None
    return ErrorBody(ErrorDetail(message, translation.type, param, translation.code))


def error_response(error: BaseException, path: str) -> Response:
    """`path` is that of the request."""
    shape = error_shape(path)
    headers: dict[str, str] = {}
    if isinstance(error, Overloaded):
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
    if isinstance(error, Unauthenticated):
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, RequestTooSlow):
        headers["connection"] = "close"
    status, body = shape.status(error), shape.write(error)
    if isinstance(error, RequestTooLarge):
        headers["connection"] = "close"
        return LingeringResponse(msgspec.json.encode(body), status, headers, "application/json")
    return json_response(body, status=status, headers=headers)


class LingeringResponse(Response):
    """Closes the connection shortly after the answer. Closing it while the client still sends would
    reset it, and the answer would be lost.
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
    return error_response(error, request.scope["path"])


async def on_routing_error(request: Request, error: Exception) -> Response:
    """Answers unknown paths and wrong methods."""
    assert isinstance(error, HTTPException)
    path, status = request.scope["path"], error.status_code
    allowed = Headers(error.headers or {}).get("allow")
    remedy = f"use {allowed}" if allowed else _meant(path, request.scope["app"].routes)
    message = f"{request.method} {path}: {error.detail}; {remedy}"
    body = error_shape(path).of_status(status, message)
    return json_response(body, status=status, headers=dict(error.headers or {}))


def _meant(path: str, routes: Sequence[BaseRoute]) -> str:
    """What an unknown path is nearly; most lack the /v1, or have it twice."""
    names = {one.path for one in routes if isinstance(one, Route) and not one.param_convertors}
    bare = path.rstrip("/").removeprefix("/v1")
    found = f"/v1{bare}" if f"/v1{bare}" in names else bare if bare in names else None
    if found is None and len(path) <= MAX_PATH:
        found = next(iter(get_close_matches(path, names, n=1, cutoff=0.8)), None)
    listed = "GET /docs lists what there is"
    return f"did you mean {found}? {listed}" if found else listed
