"""A server of OpenAI's API that does what it is told: small, in this process, on a real socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Handler = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]


def event(data: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


@dataclass
class FakeOpenAi:
    """Answers every prompt with as many tokens as it asks for."""

    refuses: tuple[str, ...] = ()
    """Fields that it has never heard of."""
    takes_ids: bool = True
    tells_usage: bool = True
    tokens_per_word: float = 1.0
    template_tokens: int = 0
    """Of chat messages, beside their words."""
    cached_tokens: int | None = None
    failures: Iterator[Handler | None] = field(default_factory=lambda: iter(()))
    """What becomes of the next requests instead; None: they are answered."""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_post("/v1/chat/completions", self._complete)
        return app

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "fake"}]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        for name in self.refuses:
            if name in body:
                return refused(f"Unsupported parameter: '{name}'")
        prompt = body["prompt"] if "prompt" in body else body["messages"][0]["content"]
        if isinstance(prompt, list) and not self.takes_ids:
            return refused("prompt must be a string")
        self.bodies.append(body)
        if (failure := next(self.failures, None)) is not None:
            return await failure(request, body)
        return await self._stream(request, body, self._num_tokens(prompt))

    def _num_tokens(self, prompt: list[int] | str) -> int:
        if isinstance(prompt, list):
            return len(prompt)
        return round(len(prompt.split()) * self.tokens_per_word) + self.template_tokens

    async def _stream(
        self, request: web.Request, body: dict[str, Any], prompt_tokens: int
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        is_chat = "messages" in body
        if is_chat:
            await response.write(event({"choices": [{"delta": {"role": "assistant"}}]}))
        for _ in range(body.get("max_tokens") or body["max_completion_tokens"]):
            token = {"delta": {"content": "x"}} if is_chat else {"text": "x"}
            await response.write(event({"choices": [token]}))
        await response.write(event({"choices": [{"text": "", "finish_reason": "length"}]}))
        if self.tells_usage and "stream_options" in body:
            usage: dict[str, Any] = {"prompt_tokens": prompt_tokens}
            usage["completion_tokens"] = body.get("max_tokens") or body["max_completion_tokens"]
            usage["prompt_tokens_details"] = {"cached_tokens": self.cached_tokens}
            await response.write(event({"choices": [], "usage": usage}))
        await response.write(b"data: [DONE]\n\n")
        return response


def refused(message: str, status: int = 400, **headers: str) -> web.Response:
    return web.json_response({"error": {"message": message}}, status=status, headers=headers)


async def too_many(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return refused("too many requests", 429, **{"retry-after": "0"})


async def crash(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return web.Response(status=503, text="<html>Service Unavailable</html>")


async def html(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return web.Response(text="<html>hello</html>", content_type="text/html")


async def cut(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """The connection breaks after a token."""
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    await response.write(event({"choices": [{"text": "x"}]}))
    assert request.transport is not None
    request.transport.abort()
    return response


async def error_in_stream(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    await response.write(event({"error": {"message": "the replica is gone"}}))
    return response


async def silence(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    await asyncio.sleep(3600)
    raise AssertionError("nobody waits so long")


@asynccontextmanager
async def served(fake: FakeOpenAi) -> AsyncIterator[FakeOpenAi]:
    runner = web.AppRunner(fake.app(), shutdown_timeout=0.01)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        fake.url = "http://{}:{}".format(*runner.addresses[0])
        yield fake
    finally:
        await runner.cleanup()
