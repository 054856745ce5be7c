"""Runs many prompts through one gateway concurrently, and reads them in order.

prompt 0   =====-----------    = generated, and read at once
prompt 1   ==========------    generated meanwhile, kept until its turn
prompt 2     (waits) ======    at most `max_open` run at once
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field

from baton.core.errors import BatonError
from baton.core.messages import Receipt
from baton.gateway.requests.generations.choices import Completion
from baton.gateway.requests.generations.completion_stream import Usage
from baton.gateway.text.output_text import TextDelta

Begin = Callable[[], Awaitable[Completion]]


@dataclass(slots=True, eq=False)
class Continuation:
    """One prompt's continuation. Iterate it once; usage and receipt are final after that."""

    begin: Begin
    completion: Completion | None = None
    updates: asyncio.Queue[TextDelta | Exception | None] = field(default_factory=asyncio.Queue)

    async def __aiter__(self) -> AsyncIterator[TextDelta]:
        """Raises BatonError if the request was refused or failed."""
        while (update := await self.updates.get()) is not None:
            if isinstance(update, Exception):
                raise update
            yield update

    @property
    def usage(self) -> Usage:
        assert self.completion is not None, "it has not begun"
        return self.completion.usage

    @property
    def receipt(self) -> Receipt:
        assert self.completion is not None, "it has not begun"
        return self.completion.receipts[0]

    async def run(self, room: asyncio.Semaphore) -> None:
        async with room:
            try:
                self.completion = await self.begin()
                async with aclosing(self.completion.deltas()) as parts:
                    async for part in parts:
                        self.updates.put_nowait(part.delta)
            except BatonError as error:
                self.updates.put_nowait(error)
            else:
                self.updates.put_nowait(None)


@asynccontextmanager
async def continuations(
    begins: Sequence[Begin], *, max_open: int
) -> AsyncIterator[list[Continuation]]:
    """Start them all, in order; leaving the context stops those that still run."""
    found = [Continuation(begin) for begin in begins]
    room = asyncio.Semaphore(max_open)
    tasks = [asyncio.create_task(one.run(room)) for one in found]
    try:
        yield found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
