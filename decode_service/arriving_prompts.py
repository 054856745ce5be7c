"""Prompts whose KV is on its way here: equal prompts wait for it rather than compute it again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from baton.core.messages import GenerateRequest

Key = tuple[bytes, tuple[int, ...]]


class ArrivingPrompts:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self._has_ended: dict[Key, asyncio.Event] = {}

    @contextmanager
    def announced(self, message: GenerateRequest) -> Iterator[None]:
        """While this lasts, the KV of the message's prompt is on its way."""
        key = _key(message)
        if key in self._has_ended:  # all that wait, wait for the first
            yield
            return
        has_ended = self._has_ended[key] = asyncio.Event()
        try:
            yield
        finally:
            del self._has_ended[key]
            has_ended.set()

    async def wait_for(self, message: GenerateRequest) -> None:
        """Return once no KV of an equal prompt is on its way any more."""
        has_ended = self._has_ended.get(_key(message))
        if has_ended is not None:
            await has_ended.wait()


def _key(message: GenerateRequest) -> Key:
    return message.salt, message.prompt
