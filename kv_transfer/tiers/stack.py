"""The tiers of one replica, fast to slow, as one place for blocks.

    put    --> host --overflow--> disk --overflow--> store      never waits; dropped if too much is
                \\---------- write-through ----------^           under way, and counted
    find   how much of a prefix is where; a prefix may be in pieces over several tiers
    read   its records, in order; what comes from a slow tier is promoted to the fastest

A block may be in several tiers: it is evicted from one without being written to the next again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Collection, Sequence
from dataclasses import dataclass
from itertools import takewhile

from baton.core.ids import Epoch, new_epoch
from baton.kv_transfer.tiers.invalidations import Invalidations
from baton.kv_transfer.tiers.level import Level
from baton.kv_transfer.tiers.media.base import Tier
from baton.kv_transfer.tiers.media.record import BlockRecord, RecordFormat

BLOCKS_PER_READ = 16
FLUSH_TIMEOUT_S = 3.0
CLOSE_TIMEOUT_S = 3.0
"""The time limit of closing one tier."""


@dataclass(frozen=True, slots=True)
class TierPart:
    """Some consecutive blocks of a prefix, all in one tier."""

    tier: str
    num_blocks: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Some consecutive records that came from one tier."""

    tier: str
    records: list[BlockRecord]


class TierStack:
    """Belongs to one event loop, but for `put`, `holds` and `metrics`: these from any thread."""

    def __init__(
        self,
        format_: RecordFormat,
        tiers: Sequence[Tier],
        *,
        max_queued_blocks: int = 256,
        write_through: Collection[str] = (),
    ) -> None:
        """`write_through` names tiers that get every block at once, not only what overflows."""
        self.format = format_
        self.epoch: Epoch = new_epoch()
        """The tiers' incarnation as a source of transfers."""
        self._invalidations = Invalidations(self._discard)
        self._levels: list[Level] = []
        for tier in reversed(tiers):
            below = self._levels[0] if self._levels else None
            self._levels.insert(0, Level(tier, below, max_queued_blocks, self._invalidations))
        self._written_through = [
            level for level in self._levels[1:] if level.tier.name in write_through
        ]

    @property
    def tier_names(self) -> tuple[str, ...]:
        """Fast to slow."""
        return tuple(level.tier.name for level in self._levels)

    def start(self) -> None:
        """Slow tiers look for what they have in the background; until then they are empty."""
        for level in self._levels:
            level.start()

    async def close(self) -> None:
        """An orderly end: what only memory holds is moved on, as far as the time allows."""
        await asyncio.to_thread(self._move_on, FLUSH_TIMEOUT_S)
        for level in self._levels:  # fast to slow: what is moved on last is still written
            await asyncio.to_thread(level.close, CLOSE_TIMEOUT_S)

    def holds(self, name: bytes) -> bool:
        """Whether a tier has a block, as far as is known without asking a remote system."""
        return any(level.holds(name) for level in self._levels)

    def put(self, record: BlockRecord) -> None:
        for level in (self._levels[0], *self._written_through):
            level.put(record)

    def discard(self, name: bytes) -> None:
        """What is kept under this name is wrong, also what is just being read. From any thread."""
        self._invalidations.invalidate(name)

    async def find(self, names: Sequence[bytes]) -> tuple[TierPart, ...]:
        """Where the longest prefix of `names` is that the tiers hold."""
        found: list[TierPart] = []
        rest = names
        while rest:
            stretch = await self._find_first(rest)
            if stretch is None:
                break
            found.append(stretch)
            rest = rest[stretch.num_blocks :]
        return tuple(found)

    async def read(self, names: Sequence[bytes]) -> AsyncGenerator[Batch, None]:
        """Yield the records in batches; end early at the first that is nowhere, or broken."""
        starts = range(0, len(names), BLOCKS_PER_READ)
        batches = [names[start : start + BLOCKS_PER_READ] for start in starts]
        reading: asyncio.Task[list[Batch]] | None = None
        try:
            for index, batch in enumerate(batches):
                found = await (reading or self._read_batch(batch))
                reading = None
                num_found = sum(len(part.records) for part in found)
                is_last = num_found < len(batch) or index + 1 == len(batches)
                if not is_last:  # while the caller is busy with these
                    reading = asyncio.create_task(self._read_batch(batches[index + 1]))
                for part in found:
                    yield part
                if is_last:
                    return
        finally:
            if reading is not None:
                reading.cancel()

    async def promote(self, names: Sequence[bytes]) -> None:
        """Read ahead: let the fastest tier have what slower ones hold of this prefix."""
        async for _ in self.read(names):
            pass

    async def recheck(self, names: Sequence[bytes]) -> int:
        """Somebody was given a broken block: find it and remove it. Returns how many were."""
        return await asyncio.to_thread(self._recheck, names)

    def metrics(self) -> dict[str, float]:
        """Metrics of every tier by Prometheus name."""
        return {
            f'tier_{name}{{tier="{level.tier.name}"}}': value
            for level in self._levels
            for name, value in _as_metrics(level).items()
        }

    async def _find_first(self, names: Sequence[bytes]) -> TierPart | None:
        for level in self._levels:
            num_blocks = await level.num_leading(names)
            if num_blocks < len(names):
                level.tier.stats.count(num_misses=1)
            if num_blocks:
                return TierPart(level.tier.name, num_blocks)
        return None

    async def _read_batch(self, names: Sequence[bytes]) -> list[Batch]:
        found: list[Batch] = []
        rest = names
        while rest:
            batch = await self._read_first(rest)
            if batch is None:
                break
            found.append(batch)
            rest = rest[len(batch.records) :]
        return found

    async def _read_first(self, names: Sequence[bytes]) -> Batch | None:
        for level in self._levels:
            with self._invalidations.watch() as invalid:
                records = await level.read(names)
                for record in records if level is not self._levels[0] else ():
                    if record.name not in invalid:
                        self._levels[0].put(record)
                    if record.name in invalid:
                        self._invalidations.invalidate(record.name)
                right = list(takewhile(lambda record: record.name not in invalid, records))
            if right:
                return Batch(level.tier.name, right)
            if records:
                return None
        return None

    def _discard(self, name: bytes) -> None:
        for level in self._levels:
            level.discard(name)

    def _move_on(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        first, below = self._levels[0].tier, self._levels[1:2]
        with self._invalidations.watch() as invalid:
            for record in first.recent() if below else ():
                if not below[0].holds(record.name) and not below[0].put_soon(record, deadline):
                    return
                if record.name in invalid:
                    self._invalidations.invalidate(record.name)

    def _recheck(self, names: Sequence[bytes]) -> int:
        num_broken = 0
        for level in self._levels:
            for name in names:
                for record in level.tier.read([name]) if level.tier.holds(name) else ():
                    if not self.format.is_whole(record):
                        level.tier.remove(name)
                        level.tier.stats.count(num_corrupt=1)
                        num_broken += 1
        return num_broken


def _as_metrics(level: Level) -> dict[str, float]:
    tier, stats = level.tier, level.tier.stats
    return {
        "waiting": level.num_waiting,
        "bytes": tier.num_bytes,
        "blocks": tier.num_blocks,
        "hits_total": stats.num_hits,
        "misses_total": stats.num_misses,
        "written_total": stats.num_written,
        "evicted_total": stats.num_evicted,
        "dropped_total": stats.num_dropped,
        "corrupt_total": stats.num_corrupt,
        "errors_total": stats.num_errors,
        "read_seconds_total": stats.read_s,
        "write_seconds_total": stats.write_s,
    }
