"""Takeovers of streams from other gateways: at most one at a time per stream.

begin -> held(): the stream is in the table, and waiters look there
      -> raised: waiters get the same error
      -> left without either: waiters try in turn
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from baton.core.errors import BatonError


class StreamTakeovers:
    """Belongs to the event loop."""

    def __init__(self) -> None:
        self._pending: dict[tuple[str, bytes], asyncio.Future[None]] = {}
        """Running takeovers, by stream id and owner, so that callers cannot block other owners."""

    async def other(self, stream_id: str, owner: bytes) -> bool:
        """Wait for another takeover of the stream; whether there was one. Raises its error."""
        pending = self._pending.get((stream_id, owner))
        if pending is None:
            return False
        await asyncio.shield(pending)
        return True

    @contextmanager
    def begin(self, stream_id: str, owner: bytes) -> Iterator[Callable[[], None]]:
        """Yields `held`, to be called once the stream is in the table. Enter it right after `other`
        returned False, before any await."""
        key, pending = (stream_id, owner), asyncio.get_running_loop().create_future()
        assert key not in self._pending, "one takeover at a time"
        self._pending[key] = pending

        def held() -> None:
            if not pending.done():
                del self._pending[key]
                pending.set_result(None)

        try:
            yield held
        except BatonError as error:
            if not pending.done():
                del self._pending[key]
                pending.set_exception(error)
                pending.exception()  # avoids asyncio's warning if there is no waiter
            raise
        finally:
            held()
