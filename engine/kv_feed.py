"""Publishes the changes of a replica's prefix cache to its followers.

    engine thread   blocks named, evicted ... --publish, once a step--> KvEventLog
    event loop      watch(): snapshot, then later events, as fast as the follower takes them

A slow follower gets more events at a time; one that is too slow gets a new snapshot. The engine
does not wait for snapshots: they are read on the event loop, a group of blocks at a time, and
changes made meanwhile are among the events that follow.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence

from baton.core.kv_events import KvChange, KvEvent, KvEvents
from baton.engine.blocks.block_pool import BlockPool
from baton.engine.blocks.kv_event_log import MAX_NAMES, KvEventLog
from baton.engine.engine_thread import EngineThread

FEW_NAMED = 1 << 16
"""Blocks with names that are listed in less than a millisecond."""
PART_BLOCKS = 4096
"""Blocks of which the names go into one part of a snapshot: a few tenths of a millisecond."""


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

    @property
    def num_followers(self) -> int:
        return len(self._followers)

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
                    sequence = await self._thread.call(self._publish_all)
                    for part in self._snapshot(sequence):
                        yield part
                        await asyncio.sleep(0)  # others may go on
                        if self._is_closed:
                            return
                elif events.events:
                    sequence = events.next_sequence
                    yield events
                else:
                    await news.wait()
        finally:
            self._followers.discard(news)

    def close(self) -> None:
        """End every `watch`. Safe to repeat."""
        self._is_closed = True
        self._wake()

    def _wake(self) -> None:
        for news in self._followers:
            news.set()

    def _publish_all(self) -> int:
        """The number of the next event. On the engine's thread."""
        self.publish()
        return self._log.next_sequence

    def _snapshot(self, first_sequence: int) -> Iterator[KvEvents]:
        """The names there are, part by part, each as it is when it is asked for. All blocks
        are asked where to list those that have a name would take long."""
        prefixes = self._pool.prefixes
        is_few = prefixes.num_named <= FEW_NAMED
        blocks: Sequence[int] = prefixes.named() if is_few else range(self._pool.num_blocks)
        for part, start in enumerate(range(0, max(len(blocks), 1), PART_BLOCKS)):
            stop = start + PART_BLOCKS
            yield KvEvents(
                first_sequence=first_sequence,
                events=(KvEvent(KvChange.STORED, prefixes.names_of(blocks[start:stop])),),
                is_snapshot=True,
                part=part,
                has_more=stop < len(blocks),
            )
