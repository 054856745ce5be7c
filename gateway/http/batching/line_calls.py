"""Runs a batch's line through the endpoints that clients call, without a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.types import ASGIApp, Message

from baton.core.errors import InvalidRequest, Overloaded, Unavailable
from baton.gateway.access.api_keys import Caller
from baton.gateway.batches.work import LineAnswer
from baton.gateway.http.completions.chat import ChatApi
from baton.gateway.http.completions.completions import CompletionsApi
from baton.gateway.http.edge import count_ignored
from baton.gateway.http.embeddings import EmbeddingsApi
from baton.gateway.http.errors import error_shape
from baton.gateway.http.messages.api import MessagesApi
from baton.gateway.http.request_body import decode_body
from baton.gateway.http.responses.api import ResponsesApi
from baton.gateway.http.responses.background import BackgroundResponses
from baton.gateway.http.scoring.classify import ClassifyApi
from baton.gateway.http.scoring.scores import ScoresApi
from baton.gateway.requests.gateway import Gateway
from baton.gateway.requests.request_ids import logged_request_id

UNAVAILABLE_S = 2.0
"""Seconds before a line that no replica took is tried again."""

BATCH_ENDPOINTS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/messages",
    "/v1/rerank",
    "/v1/score",
    "/v1/classify",
)


class _Streaming(msgspec.Struct):
    stream: Any = None
    background: Any = None


class LineCalls:
    """An AnswerLine."""

    def __init__(self, gateway: Gateway, background: BackgroundResponses) -> None:
        self._gateway = gateway
        self._endpoints: dict[str, Callable[[Request], Awaitable[ASGIApp]]] = {
            "/v1/chat/completions": ChatApi(gateway).create,
            "/v1/completions": CompletionsApi(gateway).create,
            "/v1/embeddings": EmbeddingsApi(gateway).create,
            "/v1/responses": ResponsesApi(gateway, background).create,
            "/v1/messages": MessagesApi(gateway).create,
            "/v1/rerank": ScoresApi(gateway).rerank,
            "/v1/score": ScoresApi(gateway).score,
            "/v1/classify": ClassifyApi(gateway).create,
        }

    async def __call__(
        self, endpoint: str, body: bytes, *, caller: Caller, request_id: str
    ) -> LineAnswer:
        logged_request_id.set(request_id)
        request = _request(endpoint, body, caller, request_id)
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        try:
            _refuse_streams(body)
            response = await self._endpoints[endpoint](request)
            await response(request.scope, request.receive, send)
        except Exception as error:
            return _refusal(error, endpoint)
        return LineAnswer(
            status=sent[0]["status"],
            body=b"".join(part.get("body", b"") for part in sent[1:]),
            ignored_fields=count_ignored(self._gateway, request.state.ignored_fields),
        )


def _request(endpoint: str, body: bytes, caller: Caller, request_id: str) -> Request:
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": endpoint,
        "query_string": b"",
        "headers": [(b"content-type", b"application/json")],
        "state": {
            "request_id": request_id,
            "caller": caller,
            "answer_headers": [],
            "ignored_fields": [],
        },
    }
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if messages:
            return messages.pop()
        await asyncio.Event().wait()  # never disconnects
        raise AssertionError

    return Request(scope, receive)


def _refuse_streams(body: bytes) -> None:
    asked = decode_body(body, _Streaming)
    for field in ("stream", "background"):
        if getattr(asked, field):
            raise InvalidRequest(f"{field} must be false in a batch", field=field)


def _refusal(error: Exception, endpoint: str) -> LineAnswer:
    shape = error_shape(endpoint)
    match error:
        case Overloaded():
            retry_after_s: float | None = error.retry_after_s
        case Unavailable():
            retry_after_s = UNAVAILABLE_S
        case _:
            retry_after_s = None
    body = msgspec.json.encode(shape.write(error))
    return LineAnswer(status=shape.status(error), body=body, retry_after_s=retry_after_s)
