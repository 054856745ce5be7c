"""Resumable streams over HTTP: every event has an id, from which a client may resume.

    POST /v1/completions, `resumable: true`     -> 200, id: <stream>:1, id: <stream>:2, ...
    POST to the same path, Last-Event-ID: ...:2 -> 200, id: <stream>:3, ...    (its body is ignored)
    GET  /v1/streams, Last-Event-ID: ...:2      -> the same
    DELETE /v1/streams/<stream>                 -> 204; the generation is stopped

If this gateway does not hold a stream, it asks the replicas (`resumable/parked_request.py`), then
handles the original request again up to the writing of events, and sends the client those that it
lacks.

A client that has the last event gets 204, which tells an EventSource to stop reconnecting.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field, replace

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from baton.core.errors import (
    BatonError,
    Cancelled,
    InvalidRequest,
    StreamMoved,
    Unavailable,
)
from baton.core.messages import ParkedStream
from baton.core.parking import TakeStream
from baton.gateway.access.api_keys import Caller, shown_key
from baton.gateway.http.errors import error_response
from baton.gateway.http.sending import sse
from baton.gateway.http.sending.disconnect import while_connected
from baton.gateway.requests.gateway import Gateway
from baton.gateway.resumable.keeper import ErrorEvents, StreamKeeper, StreamReading
from baton.gateway.resumable.parked_request import (
    MAX_ORDER_BYTES,
    ParkedRequest,
    order_of,
)
from baton.gateway.resumable.streams import (
    LAST_EVENT_ID,
    event_id,
    new_stream_id,
    owner_of,
    parse_event_id,
    unknown_stream,
)

PATHS = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages")
RESUMABLE_HEADER = "x-baton-resumable"
FALSE_WORDS = ("", "0", "false")
STATE_KEY = "resumption"
STREAMS = "/v1/streams"
RETRY_AFTER_S = "1"
KEPT_HEADERS = ("x-baton-receipt", "x-session-id")
"""Request headers on which the answer depends."""


@dataclass(slots=True, kw_only=True)
class Resumption:
    """State for a resumable stream of this HTTP request."""

    keeper: StreamKeeper
    owner: bytes
    path: str
    is_wanted: bool
    """Whether a header asks for a resumable stream. A body may ask for it as well."""
    stream_id: str = field(default_factory=new_stream_id)
    created: int = field(default_factory=lambda: int(time.time()))
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    """The body so far, up to a little more than may be parked."""
    parked: ParkedStream | None = None
    """Set: the stream began at another gateway."""
    last_sequence: int = 0
    on_held: Callable[[], None] = lambda: None
    """Called once the keeper holds the stream."""

    def caller(self, caller: Caller, request_id: str) -> Caller:
        """The caller, with the parking data of the stream."""
        if self.parked is not None:
            return replace(caller, parking=self.parked.request.parking, parked=self.parked)
        order = ParkedRequest(
            kind=self.path,
            request_id=request_id,
            created=self.created,
            headers=self.headers,
            body=bytes(self.body),
        )
        return replace(caller, parking=order.parking(self.stream_id, self.owner))

    def begin(self, events: AsyncGenerator[bytes], error_events: ErrorEvents) -> StreamReading:
        """Raises Overloaded."""
        reading = self.keeper.start(
            events,
            owner=self.owner,
            kind=self.path,
            error_events=error_events,
            stream_id=self.stream_id,
            last_sequence=self.last_sequence,
        )
        self.on_held()
        return reading

    def noting_body(self, receive: Receive) -> Receive:
        async def noted() -> Message:
            message = await receive()
            if message["type"] == "http.request" and len(self.body) <= MAX_ORDER_BYTES:
                self.body += message.get("body", b"")
            return message

        return noted


def resumption_of(scope: Scope) -> Resumption:
    resumption: Resumption = scope["state"][STATE_KEY]
    return resumption


def resumption_if_any(scope: Scope) -> Resumption | None:
    """The resumption of this request; None where no stream begins."""
    resumption: Resumption | None = scope.get("state", {}).get(STATE_KEY)
    return resumption


class ResumableRequests:
    """Middleware that resumes streams of any API, and prepares new ones."""

    def __init__(self, app: ASGIApp, gateway: Gateway) -> None:
        self._app = app
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_stream = scope["type"] == "http" and scope["path"] in (*PATHS, STREAMS)
        if not is_stream:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        last_event_id = headers.get(LAST_EVENT_ID)
        if last_event_id:
            paths = PATHS if scope["path"] == STREAMS else (scope["path"],)
            try:
                await self._resume(last_event_id, paths, scope, receive, send)
            except BatonError as error:
                response = error_response(error, scope["path"])
                if isinstance(error, Unavailable):  # its replica may answer soon
                    response.headers["retry-after"] = RETRY_AFTER_S
                await response(scope, receive, send)
            return
        if scope["path"] == STREAMS:
            await self._app(scope, receive, send)
            return
        resumption = Resumption(
            keeper=self._gateway.keeper,
            owner=owner_of(shown_key(headers)),
            path=scope["path"],
            is_wanted=headers.get(RESUMABLE_HEADER, "").lower() not in FALSE_WORDS,
            headers={name: headers[name] for name in KEPT_HEADERS if name in headers},
        )
        scope.setdefault("state", {})[STATE_KEY] = resumption
        await self._app(scope, resumption.noting_body(receive), send)

    async def _resume(
        self,
        last_event_id: str,
        paths: tuple[str, ...],
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Raises StreamNotFound or InvalidRequest."""
        headers = Headers(scope=scope)
        keeper, owner = self._gateway.keeper, owner_of(shown_key(headers))
        stream_id, last_sequence = parse_event_id(last_event_id)
        try:
            reading = await keeper.find(
                stream_id, owner=owner, kinds=paths, last_sequence=last_sequence
            )
        except InvalidRequest as error:
            error.field = LAST_EVENT_ID  # the stream's id and the sequence
            raise
        if reading is not None:
            limit_s = self._gateway.config.request_timeout_s
            await ResumedResponse(reading, limit_s)(scope, receive, send)
            return
        with keeper.takeovers.begin(stream_id, owner) as held:
            parked = await self._gateway.dispatcher.take_stream(TakeStream(stream_id, owner, paths))
            order = order_of(parked, kinds=paths)
            if order is None:
                unknown = unknown_stream()
                unknown.field = LAST_EVENT_ID
                raise unknown
            resumption = Resumption(
                keeper=keeper,
                owner=owner,
                path=order.kind,
                is_wanted=True,
                stream_id=stream_id,
                created=order.created,
                parked=parked,
                last_sequence=last_sequence,
                on_held=held,
            )
            begun_again = _scope_of(scope, order, resumption)
            await self._app(begun_again, _receive_of(order, receive), send)


def _scope_of(scope: Scope, order: ParkedRequest, resumption: Resumption) -> Scope:
    """The scope of the original request, with the headers of the resuming client."""
    headers = {
        **dict(Headers(scope=scope).items()),
        **order.headers,
        "content-type": "application/json",
        "content-length": str(len(order.body)),
    }
    del headers[LAST_EVENT_ID.lower()]
    state = {**scope.get("state", {}), "request_id": order.request_id, STATE_KEY: resumption}
    return {
        **scope,
        "method": "POST",
        "path": order.kind,
        "raw_path": order.kind.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "state": state,
    }


def _receive_of(order: ParkedRequest, receive: Receive) -> Receive:
    """A `receive` that yields the original body, then the resuming client's messages without its
    body."""
    is_read = False

    async def received() -> Message:
        nonlocal is_read
        if not is_read:
            is_read = True
            return {"type": "http.request", "body": order.body, "more_body": False}
        while (message := await receive())["type"] == "http.request":
            pass
        return message

    return received


class StreamsApi:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def resume(self, request: Request) -> ASGIApp:
        """Refuse, since the header is missing; with it, `ResumableRequests` has answered."""
        raise InvalidRequest(
            f"{LAST_EVENT_ID} is missing: send the id of the last event you have received",
            field=LAST_EVENT_ID,
        )

    async def end(self, request: Request) -> Response:
        """End the stream at whichever gateway has it."""
        stream_id, owner = request.path_params["stream_id"], owner_of(shown_key(request.headers))
        await self._gateway.end_stream(stream_id, owner=owner, kinds=PATHS)
        return Response(status_code=204)


class ResumedResponse:
    """An ASGI response: the events after a given one, live if the stream still runs."""

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
            return  # the client left or is too slow, or the stream was ended: close the connection


async def send_reading(reading: StreamReading, send: Send) -> None:
    """Send the events with their ids. Raises what failed before the first of them."""
    is_started = False
    with reading:
        try:
            async for sequence, event in reading:
                if not is_started:
                    is_started = True
                    head = {"type": "http.response.start", "status": 200}
                    await send({**head, "headers": sse.HEADERS})
                body = f"id: {event_id(reading.stream.id, sequence)}\n".encode() + event
                await send({"type": "http.response.body", "body": body, "more_body": True})
        except StreamMoved:
            if not is_started:
                raise
            return  # not sent as an event, so that the client can resume after the last one
    if not is_started:  # begun at another gateway, and already read to its end
        await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})
