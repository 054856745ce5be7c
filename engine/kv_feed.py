"""What a replica tells those who follow its prefix cache.

    engine thread   blocks named, evicted ... --publish, once a step--> KvEventLog
    event loop      watch(): snapshot, then what happened since, as fast as the follower takes it

A follower that is slow gets more events at once; one that is too slow, a new snapshot.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from baton.core.kv_events import KvChange, KvEvent, KvEvents
from baton.engine.blocks.block_pool import BlockPool
from baton.engine.blocks.kv_event_log import MAX_NAMES, KvEventLog
from baton.engine.engine_thread import EngineThread


class KvFeed:
    def __init__(
        self, pool: BlockPool, thread: EngineThread, *, max_names: int = MAX_NAMES
    ) -> None:
        self._pool = pool
        self._thread = thread
        self._log = KvEventLog(max_names)
        self._followers: set[asyncio.Event] = set()
        self._is_closed = False
        pool.record_in(self._log)

    def publish(self) -> None:
        """Let followers have what changed. On the engine's thread: after steps, and when idle."""
        if self._log.flush() and self._followers:
            self._thread.tell(self._wake)

    async def watch(self) -> AsyncGenerator[KvEvents, None]:
        """Yield a snapshot, then the changes, until closed. Raises EngineFailed if the thread died.

        On the event loop that started the engine's thread.
        """
        news = asyncio.Event()
        self._followers.add(news)
        try:
            sequence: int | None = None
            while not self._is_closed:
                news.clear()
                events = None if sequence is None else self._log.read(sequence)
                if events is None:
                    events = await self._thread.call(self._snapshot)
                elif not events.events:
                    await news.wait()
                    continue
                sequence = events.next_sequence
                yield events
        finally:
            self._followers.discard(news)

    def close(self) -> None:
        """End every `watch`. Safe to repeat."""
        self._is_closed = True
        self._wake()

    def _wake(self) -> None:
        for news in self._followers:
            news.set()

    def _snapshot(self) -> KvEvents:
        """On the engine's thread, which alone may look into the cache."""
        self.publish()
        return KvEvents(
            first_sequence=self._log.next_sequence,
            events=(KvEvent(KvChange.STORED, b"".join(self._pool.names())),),
            is_snapshot=True,
        )
