"""Streams on their way here from other gateways: of each, one takeover at a time.

begin -> held(): the stream is in the table, and whoever waited looks there
      -> raised: whoever waited gets the same error
      -> left without either: whoever waited tries in turn
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
        """Takeovers under way, by stream id and owner: nobody waits for what a stranger asks."""

    async def other(self, stream_id: str, owner: bytes) -> bool:
        """Wait for the end of another takeover of the stream: whether there was one. Raises what
        that one failed with."""
        pending = self._pending.get((stream_id, owner))
        if pending is None:
            return False
        await asyncio.shield(pending)
        return True

    @contextmanager
    def begin(self, stream_id: str, owner: bytes) -> Iterator[Callable[[], None]]:
        """Gives `held`, to be called once the stream is in the table. To be entered in the moment
        in which there is no other."""
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
                pending.exception()  # nobody has to wait for it
            raise
        finally:
            held()
