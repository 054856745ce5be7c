"""Calls that decode replicas open before their prompts: see `AwaitPrompt` in replica.proto."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class EarlyCalls:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Task[Any]] = set()
        self._is_over = False

    def __len__(self) -> int:
        return len(self._waiting)

    async def prompt_of(self, coming: Coroutine[Any, Any, T]) -> T | None:
        """What comes, or None if nothing may begin here any more."""
        reading = asyncio.create_task(coming)
        self._waiting.add(reading)
        if self._is_over:
            reading.cancel()
        try:
            return await reading
        except asyncio.CancelledError:
            if self._is_over:
                return None
            raise
        finally:
            self._waiting.discard(reading)
            reading.cancel()

    def end(self) -> None:
        """Let those go that wait, or come later. Safe to repeat."""
        self._is_over = True
        for reading in tuple(self._waiting):
            reading.cancel()
