"""Progress of a prompt until its first token, for streams with `return_progress`.

deltas:    ................ first delta, second ... sent:      progress, progress, first delta,
second ...     twice a second until then
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Literal, TypeVar

import msgspec

T = TypeVar("T")

EACH_S = 0.5


class PromptProgress(msgspec.Struct, frozen=True, kw_only=True):
    """llama.cpp's fields, and state, position and eta_ms."""

    state: Literal["queued", "starting", "in_line", "computed"]
    """Waiting for a place; for a replica that starts; for a prefill replica; being computed."""
    position: int
    """Requests before it."""
    total: int
    """The prompt's tokens."""
    cache: int = 0
    """Prompt tokens found in a cache; 0 until known."""
    processed: int = 0
    """Predicted prompt tokens cached or computed by now."""
    time_ms: float = 0.0
    """Milliseconds since the request arrived."""
    eta_ms: float
    """Predicted milliseconds until its first token."""


async def with_prompt_progress(
    deltas: AsyncGenerator[T],
    current: Callable[[], PromptProgress | None],
    each_s: float | None = None,
) -> AsyncGenerator[T | PromptProgress]:
    """Yields progress every `each_s` seconds until the first delta, then all of `deltas`, which it
    closes."""
    each_s = EACH_S if each_s is None else each_s
    clock = asyncio.get_running_loop().time
    began_s = clock()
    async with aclosing(deltas):
        first = asyncio.ensure_future(_next(deltas))
        try:
            while not (await asyncio.wait((first,), timeout=each_s))[0]:
                progress = current()
                if progress is not None:
                    time_ms = round((clock() - began_s) * 1e3, 1)
                    yield msgspec.structs.replace(progress, time_ms=time_ms)
            delta = first.result()
        finally:
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
        while delta is not None:
            yield delta
            delta = await _next(deltas)


async def _next(deltas: AsyncGenerator[T]) -> T | None:
    return await anext(deltas, None)
