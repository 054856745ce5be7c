"""One replica without a model: a real pool, tiers, and KV that follows from the tokens."""

from __future__ import annotations

import array
import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from hashlib import shake_128
from itertools import count

from tests.kv_transfer.tiers.blocks import LAYOUT

from baton.core.clock import ManualClock
from baton.core.ids import TransferId, new_epoch
from baton.core.kv_layout import SideCache
from baton.core.kv_pool import Holder, HolderKind
from baton.core.owner_thread import OneThread
from baton.engine.blocks.block_pool import BlockPool
from baton.engine.memory.kv_cache import KvCache
from baton.kv_transfer.handoff.auditor import AuditReport, audit
from baton.kv_transfer.receiving.receiver import Receiver, ReceiverConfig
from baton.kv_transfer.tiers.config import TiersConfig
from baton.kv_transfer.tiers.media.base import Tier
from baton.kv_transfer.tiers.media.host import HostTier
from baton.kv_transfer.tiers.media.record import RecordFormat
from baton.kv_transfer.tiers.stack import TierStack
from baton.kv_transfer.tiers.tiers import PoolParts, Tiers

INDEX = SideCache(name="index", layers=(1,), width=3, dtype="float32")
WITH_SIDES = replace(LAYOUT, side_caches=(INDEX,))
SIZE = WITH_SIDES.block_size
FORMAT = RecordFormat(WITH_SIDES)


def host(num_blocks: int = 1000) -> HostTier:
    return HostTier(FORMAT, num_blocks * FORMAT.record_bytes)


def kv_of(tokens: Sequence[int], salt: bytes, block: int, plane: int) -> bytes:
    """A hash of all there is up to the block's end; of the salt, too, so that any mix-up shows."""
    seen = array.array("I", tokens[: (block + 1) * SIZE]).tobytes()
    num_bytes = WITH_SIDES.planes[plane].layer_block_bytes
    return shake_128(salt + bytes([plane, block]) + seen).digest(num_bytes)


@dataclass
class PoolWorld:
    pool: BlockPool
    owner: OneThread
    receiver: Receiver
    tiers: Tiers
    clock: ManualClock
    running: set[str] = field(default_factory=set)
    numbers: count[int] = field(default_factory=count)

    async def compute(self, tokens: Sequence[int], salt: bytes = b"") -> int:
        """A request: reserve, check what was cached, fill in the rest, leave.

        Like any request it waits for blocks: those that are being written back are leased.
        Returns how many tokens were cached.
        """
        async with asyncio.timeout(60):
            while (num := await self.owner.call(lambda: self._compute(tokens, salt))) is None:
                await asyncio.sleep(0.001)
        return num

    async def swap_in(self, tokens: Sequence[int], salt: bytes = b"") -> tuple[int, str]:
        """Bring in, then compute. Returns how many tokens were cached then, and the note."""
        wanted = tokens[: (len(tokens) - 1) // SIZE * SIZE]
        async with self.tiers.bring_in(wanted, salt) as brought_in:
            return await self.compute(tokens, salt), brought_in.note

    async def push_out(self) -> None:
        """Other prompts take all blocks."""
        num_tokens = self.pool.num_blocks * SIZE
        await self.compute([10_000 + next(self.numbers) for _ in range(num_tokens)], b"others")

    async def written_back(self) -> None:
        async with asyncio.timeout(60):
            while not await self.owner.call(self._is_written_back):
                await asyncio.sleep(0.001)

    async def lease_ids(self) -> frozenset[TransferId]:
        """Of the blocks that are being written back; the owner's thread alone may look."""
        return await self.owner.call(lambda: self.tiers.lease_ids)

    async def audit(self) -> AuditReport:
        return await self.owner.call(
            lambda: audit(
                self.pool.census(), self.running, self.receiver.lease_ids | self.tiers.lease_ids
            )
        )

    async def assert_nothing_is_held(self) -> None:
        async with asyncio.timeout(60):
            while (report := await self.audit()).leased or report.quarantined:
                await asyncio.sleep(0.001)
        assert report.violations == () and report.live == 0

    def _is_written_back(self) -> bool:
        """On the owner's thread: any other could see a block between waiting, held and put."""
        metrics = self.tiers.metrics()
        return not self.tiers.lease_ids and not any(
            value for name, value in metrics.items() if "_waiting" in name
        )

    def _compute(self, tokens: Sequence[int], salt: bytes) -> int | None:
        holder = Holder(HolderKind.REQUEST, f"request-{next(self.numbers)}")
        num_cached = self.pool.reserve(holder, tokens, salt)
        if num_cached is None:
            return None
        for index in range(WITH_SIDES.num_blocks_for(len(tokens))):
            for plane in range(WITH_SIDES.num_planes):
                data = kv_of(tokens, salt, index, plane)
                if index * SIZE < num_cached:
                    assert self.pool.view(holder, index, plane) == data, "wrong KV was found"
                else:
                    self.pool.write(holder, index, plane, memoryview(data))
        self.pool.commit(holder, tokens, len(tokens), salt)
        self.pool.release(holder)
        return num_cached


@asynccontextmanager
async def running_world(
    *tiers: Tier, num_blocks: int = 16, config: TiersConfig | None = None
) -> AsyncIterator[PoolWorld]:
    clock, owner = ManualClock(), OneThread()
    pool = BlockPool(KvCache(WITH_SIDES, num_blocks))
    receiver = Receiver(pool, new_epoch(), ReceiverConfig(max_leased_fraction=1.0))
    parts = PoolParts(pool=pool, owner=owner, receiver=receiver, clock=clock)
    stack = TierStack(FORMAT, tiers or (host(),))
    it = Tiers(stack, parts, config or TiersConfig(min_tokens=SIZE, deadline_s=30.0))
    it.start()
    world = PoolWorld(pool, owner, receiver, it, clock)
    try:
        yield world
        await world.assert_nothing_is_held()
    finally:
        await it.close()
        owner.stop()
