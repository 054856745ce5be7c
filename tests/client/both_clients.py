"""The synchronous client behind the asynchronous one's surface, so that a test covers both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from baton.client.async_client import AsyncBatonClient
from baton.client.client import BatonClient

KINDS = ("sync", "async")


class InThreads:
    """Calls of a BatonClient, each on another thread."""

    def __init__(self, client: BatonClient) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        async def call(*args: Any, **options: Any) -> Any:
            return await asyncio.to_thread(method, *args, **options)

        return call

    def stream(self, *args: Any, **options: Any) -> StreamInThreads:
        return StreamInThreads(self._client.stream(*args, **options))

    def stream_chat(self, *args: Any, **options: Any) -> StreamInThreads:
        return StreamInThreads(self._client.stream_chat(*args, **options))


class StreamInThreads:
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def __aenter__(self) -> StreamInThreads:
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self._stream.close)

    def __aiter__(self) -> StreamInThreads:
        return self

    async def __anext__(self) -> Any:
        delta = await asyncio.to_thread(next, self._stream, None)
        if delta is None:
            raise StopAsyncIteration
        return delta

    async def aclose(self) -> None:
        await asyncio.to_thread(self._stream.close)

    async def result(self) -> Any:
        return await asyncio.to_thread(self._stream.result)


@asynccontextmanager
async def client_of(kind: str, target: str, **options: Any) -> AsyncIterator[Any]:
    if kind == "sync":
        with BatonClient(target, **options) as client:
            yield InThreads(client)
    else:
        async with AsyncBatonClient(target, **options) as client:
            yield client
