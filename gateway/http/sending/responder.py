"""Runs a completion and sends it: as one JSON body, or as server-sent events.

whole     run to the end, settle -> 200 and the answer, or an error's status
streamed  first delta    -> 200, event, event ..., settle, last events
             | failed before it: an error's status
             | failed after it: an event that says so, and the stream ends
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

import msgspec
from starlette.types import Receive, Scope, Send

from baton.core.errors import Cancelled, StreamMoved
from baton.gateway.http.errors import json_response
from baton.gateway.http.sending import sse
from baton.gateway.http.sending.disconnect import while_connected
from baton.gateway.http.sending.resuming import Resumption, resumption_of, send_reading
from baton.gateway.requests.generations.choices import ChoiceDelta, Completion
from baton.gateway.requests.generations.prompt_progress import PromptProgress, with_prompt_progress

SENDING_GRACE_S = 10.0
"""Seconds for a client that reads slowly, beyond the time limit of the request itself."""


class AnswerWriter(Protocol):
    """Writes one answer in an API's format. One per request, so it may have state.

    Events are encoded: see `sse`. The usage of the completion is final in `whole` and `ending`.
    """

    def whole(self, choices: Sequence[ChoiceDelta]) -> msgspec.Struct:
        """One delta for each choice, in order."""

    def opening(self) -> Iterable[bytes]:
        """Written before the first delta, once there is one."""

    def events(self, part: ChoiceDelta) -> Iterable[bytes]: ...

    def ending(self) -> Iterable[bytes]: ...

    def failure(self, error: Exception) -> Iterable[bytes]: ...


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a prompt, for streams that are to report it."""

    current: Callable[[], PromptProgress | None]
    write: Callable[[PromptProgress], Iterable[bytes]]


class Responder:
    """An ASGI response."""

    def __init__(
        self,
        completion: Completion,
        writer: AnswerWriter,
        *,
        is_streamed: bool,
        is_resumable: bool = False,
        progress: Progress | None = None,
        settle: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`settle` is awaited before the end of the answer is sent."""
        self._completion = completion
        self._writer = writer
        self._is_streamed = is_streamed
        self._is_resumable = is_resumable
        self._progress = progress
        self._settle = settle
        self._is_open = False
        """Whether a delta has come."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        allowed_s = self._completion.time_left_s
        limit_s = None if allowed_s is None else allowed_s + SENDING_GRACE_S
        try:
            async with asyncio.timeout(limit_s):
                if self._is_streamed:
                    await while_connected(receive, self._send_stream(resumption_of(scope), send))
                else:
                    answer = await while_connected(receive, self.whole())
                    await json_response(answer)(scope, receive, send)
        except Cancelled:
            return  # the client is gone

    async def events(self) -> AsyncGenerator[bytes]:
        """The encoded events of a stream. Raises what fails before the first of them."""
        has_begun = False
        try:
            async with aclosing(self._parts()) as parts:
                async for part in parts:
                    has_begun = True
                    for event in self._written(part):
                        yield event
            if self._settle is not None:
                await self._settle()
            for event in self._writer.ending():
                yield event
        except StreamMoved:
            raise  # a broken connection shows it: events must be those of the other gateway
        except Exception as error:
            if not has_begun:
                raise
            for event in self._writer.failure(error):
                yield event

    async def whole(self) -> msgspec.Struct:
        """Run to the end, with or without a client."""
        choices = await self._completion.whole()
        answer = self._writer.whole(choices)
        if self._settle is not None:
            await self._settle()
        return answer

    def _parts(self) -> AsyncGenerator[ChoiceDelta] | AsyncGenerator[ChoiceDelta | PromptProgress]:
        deltas = self._completion.deltas()
        return (
            deltas
            if self._progress is None
            else with_prompt_progress(deltas, self._progress.current)
        )

    def _written(self, part: ChoiceDelta | PromptProgress) -> Iterable[bytes]:
        if isinstance(part, PromptProgress):
            return () if self._progress is None else self._progress.write(part)
        if self._is_open:
            return self._writer.events(part)
        self._is_open = True
        return chain(self._writer.opening(), self._writer.events(part))

    async def _send_stream(self, resumption: Resumption, send: Send) -> None:
        if self._is_resumable or resumption.is_wanted:
            await send_reading(resumption.begin(self.events(), self._writer.failure), send)
        else:
            await self._send_events(send)

    async def _send_events(self, send: Send) -> None:
        is_started = False
        async with aclosing(self.events()) as events:
            async for event in events:
                if not is_started:
                    is_started = True
                    head = {"type": "http.response.start", "status": 200}
                    await send({**head, "headers": sse.HEADERS})
                await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
