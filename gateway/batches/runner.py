"""Finds batches without a holder and runs them, on whichever gateway gets the lease.

    look   every folder of a batch: nobody has held its lease, or its holder is silent or left it
      --> claim the next epoch; exactly one gateway gets it
      --> work, and beat; a gateway that lost the lease stops, and keeps nothing
      --> what the batch came to is kept, then the folder is removed

A gateway that stops releases its lease, so that another continues at once; after a crash this takes
`takeover_s`. A batch whose owner has no key any more is released, too, and waits for one.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from baton.core.clock import Clock, monotonic
from baton.core.errors import BatonError
from baton.gateway.batches.batches import Batches
from baton.gateway.batches.lease import Lease, LeaseLost, LeaseRecord, newest_record
from baton.gateway.batches.records import OVER, BatchOrder
from baton.gateway.batches.work import BatchContext, BatchWork

log = logging.getLogger(__name__)

LOOK_S = 1.0
MAX_BATCHES = 4
"""Batches that one gateway works on at once: they share the lines that it runs."""
BEATS = 5
"""Heartbeats per `takeover_s`."""
AGAIN_S, MOST_AGAIN_S = 5.0, 120.0
"""A batch that could not be worked on is tried again after so long, then after twice as long."""


@dataclass(frozen=True, slots=True)
class _SeenLease:
    record: LeaseRecord
    since: float
    """When `record` was first seen, by the runner's clock; it has not changed since."""


@dataclass(frozen=True, slots=True)
class _Failed:
    """A batch that could not be worked on, until it is tried again."""

    not_before: float
    again_s: float


STOP_S = 5.0
NEVER = _Failed(-math.inf, AGAIN_S / 2)


class BatchRunner:
    def __init__(
        self,
        context: BatchContext,
        batches: Batches,
        *,
        count: Callable[[str], None],
        clock: Clock = monotonic,
    ) -> None:
        """`count` is called with how each batch ended that this gateway ran."""
        self._context = context
        self._batches = batches
        self._count = count
        self._clock = clock
        self._seen_leases: dict[str, _SeenLease] = {}
        self._failed: dict[str, _Failed] = {}
        self._working: dict[str, tuple[BatchOrder, asyncio.Task[None]]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._is_away = False

    def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._look_on(), name="looks for batches"),
            asyncio.create_task(self._context.scheduler.watch(), name="paces batches"),
        ]

    async def stop(self) -> None:
        """Stop, and release the leases. Safe to repeat."""
        tasks = [*self._tasks, *(task for _, task in self._working.values())]
        for task in tasks:
            task.cancel()
        if tasks:  # a hanging disk must not keep a gateway from stopping
            await asyncio.wait(tasks, timeout=STOP_S)

    async def _look_on(self) -> None:
        """Look for batches to work on, for ever."""
        while True:
            try:
                await self._look()
                self._is_away = False
            except Exception as error:  # the next look may go better
                if not self._is_away:
                    log.error("batches cannot be looked for: %r", error)
                self._is_away = True
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._batches.is_new.wait()
            self._batches.is_new.clear()

    async def _look(self) -> None:
        context, now = self._context, self._clock()
        ids = await context.disk(context.folder.ids)
        self._seen_leases = {one: seen for one, seen in self._seen_leases.items() if one in ids}
        self._failed = {one: failed for one, failed in self._failed.items() if one in ids}
        free = [
            one
            for one in ids
            if one not in self._working and self._failed.get(one, NEVER).not_before <= now
        ]
        orders: list[tuple[BatchOrder, LeaseRecord]] = []
        for batch_id in free:
            order = await context.disk(context.folder.order, batch_id)
            if order is None:  # its end was kept by a gateway that was then stopped
                await context.disk(context.folder.remove, batch_id)
                continue
            with suppress(FileNotFoundError):
                record = await context.disk(newest_record, context.folder.of(batch_id))
                is_free = self._is_free(batch_id, record, now)
                if is_free and await self._can_go_on(order):
                    orders.append((order, record))
        while orders and len(self._working) < MAX_BATCHES:
            at_work = Counter(order.owner for order, _ in self._working.values())
            order, record = min(orders, key=lambda one: at_work[one[0].owner])  # then the oldest
            orders.remove((order, record))
            await self._claim(order, record)

    def _is_free(self, batch_id: str, record: LeaseRecord, now: float) -> bool:
        seen = self._seen_leases.get(batch_id)
        if seen is None or seen.record != record:
            seen = self._seen_leases[batch_id] = _SeenLease(record, now)
        return record.is_over or now - seen.since >= self._context.config.takeover_s

    async def _can_go_on(self, order: BatchOrder) -> bool:
        """False while the owner has no key and the batch need not end: working on it would only
        hold its lease."""
        context = self._context
        if context.caller_of(order) or order.batch.expires_at <= context.unix_time():
            return True
        return await context.disk(context.folder.cancelled_at, order.batch.id) is not None

    async def _claim(self, order: BatchOrder, record: LeaseRecord) -> None:
        context, batch_id = self._context, order.batch.id
        lease = await context.disk(Lease.claim, context.folder.of(batch_id), record.epoch)
        if lease is not None:
            task = asyncio.create_task(self._work(order, lease), name=f"works on {batch_id}")
            self._working[batch_id] = order, task

    async def _work(self, order: BatchOrder, lease: Lease) -> None:
        batch_id = order.batch.id
        try:
            async with asyncio.TaskGroup() as both:
                beating = both.create_task(self._beat(lease))
                await self._work_on(order, lease)
                beating.cancel()
        except* LeaseLost as lost:
            log.warning("%s", lost.exceptions[0])
        except* (OSError, BatonError) as failed:
            log.error("%s waits: %s", batch_id, failed.exceptions[0])
            self._try_later(batch_id)
        except* Exception:
            log.exception("%s could not be worked on", batch_id)
            self._try_later(batch_id)
        finally:
            del self._working[batch_id]
            self._batches.is_new.set()  # there is room for another
            with suppress(OSError, RuntimeError):
                await self._context.disk(lease.give_up)

    def _try_later(self, batch_id: str) -> None:
        again_s = min(self._failed.get(batch_id, NEVER).again_s * 2, MOST_AGAIN_S)
        self._failed[batch_id] = _Failed(self._clock() + again_s, again_s)

    async def _beat(self, lease: Lease) -> None:
        """Renew the lease for ever. Raises LeaseLost, also if it could not be renewed for
        `takeover_s`."""
        limit_s = self._context.config.takeover_s
        beaten_at = self._clock()
        while True:
            try:
                await self._context.disk(lease.beat)
                beaten_at = self._clock()
            except OSError:
                if self._clock() - beaten_at > limit_s:
                    raise
            await asyncio.sleep(limit_s / BEATS)

    async def _work_on(self, order: BatchOrder, lease: Lease) -> None:
        context, batch_id = self._context, order.batch.id
        batch = await self._batches.kept(batch_id, order.owner)
        if batch is None:
            state = await context.disk(context.folder.state, order)
            batch = await BatchWork(context, order, state, lease).run()
            await context.disk(lease.check)
            await self._batches.keep(batch, order.owner)
            self._count(batch.status)
            log.info("%s: %s", batch_id, batch.status)
        assert batch.status in OVER
        await context.disk(context.folder.remove, batch_id)
