"""Runs a completion and sends it: as one JSON body, or as server-sent events.

whole     run to the end -> 200 and the answer, or an error's status
streamed  first delta    -> 200, chunk, chunk ..., last chunk, [usage], [DONE]
             | failed before it: an error's status
             | failed after it: an `error` event, and the stream ends
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

import msgspec
from starlette.types import Receive, Scope, Send

from baton.core.errors import Cancelled
from baton.platform.gateway.answers import Answer, usage_answer
from baton.platform.gateway.completion_stream import CompletionStream
from baton.platform.gateway.disconnect import while_connected
from baton.platform.gateway.http_errors import error_body, json_response
from baton.platform.gateway.text.output_text import TextDelta, merge

SENDING_GRACE_S = 10.0
"""For a client that reads slowly, beyond the time limit of the request itself."""

SSE_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would hold events back
]
DONE = b"data: [DONE]\n\n"


class AnswerFormat(Protocol):
    """How an API writes what has been generated."""

    def whole(self, delta: TextDelta) -> Answer: ...

    def chunk(self, delta: TextDelta, *, is_first: bool) -> Answer: ...

    def closing(self) -> Answer:
        """A chunk without choices, to carry usage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerOptions:
    is_streamed: bool
    includes_usage: bool
    """In streams; whole answers always do."""
    includes_receipt: bool


class Responder:
    """An ASGI response."""

    def __init__(
        self, stream: CompletionStream, answer_format: AnswerFormat, options: AnswerOptions
    ) -> None:
        self._stream = stream
        self._format = answer_format
        self._options = options

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        allowed_s = self._stream.generation.time_left_s
        limit_s = None if allowed_s is None else allowed_s + SENDING_GRACE_S
        try:
            async with asyncio.timeout(limit_s):
                if self._options.is_streamed:
                    await while_connected(receive, self._send_events(send))
                else:
                    answer = await while_connected(receive, self._whole())
                    await json_response(answer)(scope, receive, send)
        except Cancelled:
            return  # nobody is left to be told

    async def _whole(self) -> Answer:
        async with self._stream as stream:
            deltas = [delta async for delta in stream]
            answer = self._format.whole(merge(deltas))
            answer.usage = usage_answer(stream.usage)
            if self._options.includes_receipt:
                answer.baton = stream.receipt
            return answer

    async def _send_events(self, send: Send) -> None:
        is_started = False
        try:
            async with aclosing(self._events()) as events:
                async for event in events:
                    if not is_started:
                        is_started = True
                        await _send_head(send)
                    await send({"type": "http.response.body", "body": event, "more_body": True})
        except Exception as error:
            if not is_started:
                raise
            await send({"type": "http.response.body", "body": _event(error_body(error))})
        else:
            await send({"type": "http.response.body", "body": b""})

    async def _events(self) -> AsyncGenerator[bytes]:
        """One write for each update that has something to show."""
        is_first = True
        async with self._stream as stream:
            async for delta in stream:
                if delta.finish_reason is not None:
                    await stream.close()  # completes the receipt
                    yield self._last_events(delta, is_first=is_first)
                elif delta.text or delta.logprobs or is_first:
                    yield self._event(self._format.chunk(delta, is_first=is_first))
                is_first = False

    def _last_events(self, delta: TextDelta, *, is_first: bool) -> bytes:
        answers = [self._format.chunk(delta, is_first=is_first)]
        if self._options.includes_usage:
            answers.append(self._format.closing())
            answers[-1].usage = usage_answer(self._stream.usage)
        if self._options.includes_receipt:
            answers[-1].baton = self._stream.receipt
        return b"".join((*map(self._event, answers), DONE))

    def _event(self, answer: Answer) -> bytes:
        if self._options.includes_usage and answer.usage is msgspec.UNSET:
            answer.usage = None  # as OpenAI does: present in every chunk, set in the last
        return _event(answer)


async def _send_head(send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": SSE_HEADERS})


def _event(content: msgspec.Struct) -> bytes:
    return b"data: " + msgspec.json.encode(content) + b"\n\n"
