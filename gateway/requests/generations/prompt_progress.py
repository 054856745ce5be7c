"""How far a prompt is until its first token, for streams that ask (`return_progress`).

deltas:    ................ first delta, second ...
told:      progress, progress, first delta, second ...     one each half a second until then
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
    """llama.cpp's names, and three more: state, position and eta_ms."""

    state: Literal["queued", "starting", "in_line", "computed"]
    """It has no place; no replica is there either, and one starts for it; it waits for a prefill
    replica; one has it, and computes it in turn."""
    position: int
    """How many should go first."""
    total: int
    """The prompt's tokens."""
    cache: int = 0
    """Prompt tokens found in a cache, once that is known."""
    processed: int = 0
    """Prompt tokens cached or computed by now, by prediction."""
    time_ms: float = 0.0
    """Milliseconds since it was asked for."""
    eta_ms: float
    """Milliseconds until its first token, by prediction."""


async def told_until_first(
    deltas: AsyncGenerator[T],
    tell: Callable[[], PromptProgress | None],
    each_s: float | None = None,
) -> AsyncGenerator[T | PromptProgress]:
    """All of `deltas`, which it closes, and before the first of them what is told each `each_s`."""
    each_s = EACH_S if each_s is None else each_s
    clock = asyncio.get_running_loop().time
    began_s = clock()
    async with aclosing(deltas):
        first = asyncio.ensure_future(_next(deltas))
        try:
            while not (await asyncio.wait((first,), timeout=each_s))[0]:
                progress = tell()
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
