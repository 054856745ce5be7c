"""Resumable streams over HTTP: every event carries an id, and a client may come back with the last.

    POST /v1/completions, `resumable: true`     -> 200, id: <stream>:1, id: <stream>:2, ...
    POST to the same path, Last-Event-ID: ...:2 -> 200, id: <stream>:3, ...    (its body is ignored)
    GET  /v1/streams, Last-Event-ID: ...:2      -> the same
    DELETE /v1/streams/<stream>                 -> 204; the generation is stopped

Who has received the last event gets 204, which tells an EventSource to stop coming back.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from baton.core.errors import BatonError, Cancelled, InvalidRequest
from baton.gateway.access.api_keys import shown_key
from baton.gateway.http import sse
from baton.gateway.http.disconnect import while_connected
from baton.gateway.http.errors import error_response
from baton.gateway.requests.gateway import Gateway
from baton.gateway.resumable.keeper import ErrorEvents, StreamKeeper, StreamReading
from baton.gateway.resumable.streams import (
    LAST_EVENT_ID,
    event_id,
    owner_of,
    parse_event_id,
)

PATHS = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages")
RESUMABLE_HEADER = "x-baton-resumable"
FALSE_WORDS = ("", "0", "false")
STATE_KEY = "resumption"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """What a resumable stream of this HTTP request would need."""

    keeper: StreamKeeper
    owner: bytes
    path: str
    is_wanted: bool
    """By header. A body may want it as well."""

    def begin(self, events: AsyncGenerator[bytes], error_events: ErrorEvents) -> StreamReading:
        """Raises Overloaded."""
        return self.keeper.start(
            events, owner=self.owner, kind=self.path, error_events=error_events
        )


def resumption_of(scope: Scope) -> Resumption:
    resumption: Resumption = scope["state"][STATE_KEY]
    return resumption


class ResumableRequests:
    """Serves clients that come back, whatever API they come back to, and prepares the others."""

    def __init__(self, app: ASGIApp, gateway: Gateway) -> None:
        self._app = app
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in PATHS:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        last_event_id = headers.get(LAST_EVENT_ID)
        if scope["method"] == "POST" and last_event_id:
            try:
                response = _rest(self._gateway, headers, last_event_id, paths=(scope["path"],))
                await response(scope, receive, send)
            except BatonError as error:
                await error_response(error, scope["path"])(scope, receive, send)
            return
        scope.setdefault("state", {})[STATE_KEY] = Resumption(
            keeper=self._gateway.keeper,
            owner=owner_of(shown_key(headers)),
            path=scope["path"],
            is_wanted=headers.get(RESUMABLE_HEADER, "").lower() not in FALSE_WORDS,
        )
        await self._app(scope, receive, send)


class StreamsApi:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def resume(self, request: Request) -> ASGIApp:
        last_event_id = request.headers.get(LAST_EVENT_ID)
        if not last_event_id:
            raise InvalidRequest(
                f"{LAST_EVENT_ID} is missing: send the id of the last event you have received",
                field=LAST_EVENT_ID,
            )
        return _rest(self._gateway, request.headers, last_event_id, paths=PATHS)

    async def end(self, request: Request) -> Response:
        owner = owner_of(shown_key(request.headers))
        self._gateway.keeper.end(request.path_params["stream_id"], owner=owner, kinds=PATHS)
        return Response(status_code=204)


class ResumedResponse:
    """An ASGI response: what follows an event, live if the stream still runs."""

    def __init__(self, reading: StreamReading, limit_s: float) -> None:
        self._reading = reading
        self._limit_s = limit_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._reading.is_at_the_end:
            await Response(status_code=204)(scope, receive, send)
            return
        try:
            async with asyncio.timeout(self._limit_s):
                await while_connected(receive, send_reading(self._reading, send))
        except (Cancelled, TimeoutError):
            return  # the client left or is too slow, or the stream was ended: cut the connection


async def send_reading(reading: StreamReading, send: Send) -> None:
    """Send the events with their ids. Raises what failed before the first of them."""
    is_started = False
    with reading:
        async for sequence, event in reading:
            if not is_started:
                is_started = True
                head = {"type": "http.response.start", "status": 200}
                await send({**head, "headers": sse.HEADERS})
            body = f"id: {event_id(reading.stream.id, sequence)}\n".encode() + event
            await send({"type": "http.response.body", "body": body, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def _rest(
    gateway: Gateway, headers: Headers, last_event_id: str, *, paths: tuple[str, ...]
) -> ResumedResponse:
    stream_id, last_sequence = parse_event_id(last_event_id)
    try:
        reading = gateway.keeper.resume(
            stream_id,
            owner=owner_of(shown_key(headers)),
            kinds=paths,
            last_sequence=last_sequence,
        )
    except InvalidRequest as error:
        error.field = LAST_EVENT_ID  # where the stream's id and the sequence stand here
        raise
    return ResumedResponse(reading, gateway.config.request_timeout_s)
