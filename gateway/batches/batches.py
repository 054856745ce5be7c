"""Batches as clients see them, on any gateway: create, get, list, cancel, delete.

under way    WorkFolder, until it is over
over         batch/ID in the storage
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec

from baton.core.errors import InvalidRequest, NotKept, Overloaded, StorageUnavailable
from baton.gateway.access.api_keys import Caller
from baton.gateway.access.batch_config import BatchConfig
from baton.gateway.batches.disk import Disk
from baton.gateway.batches.records import OVER, Batch, BatchOrder, RequestCounts, new_id
from baton.gateway.batches.work_folder import WorkFolder
from baton.gateway.storage.folder import Place
from baton.gateway.storage.storage import Storage

R = TypeVar("R")

KIND = "batch"
WINDOW_S = 86_400


class NewBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch request, already checked."""

    endpoint: str
    input_file_id: str
    metadata: dict[str, str] | None
    output_ttl_s: float
    num_lines: int = 0
    """Lines of the input; 0 if not known."""


class Batches:
    def __init__(
        self,
        storage: Storage,
        folder: WorkFolder,
        disk: Disk,
        *,
        model: str,
        config: BatchConfig,
        unix_time: Callable[[], float] = time.time,
    ) -> None:
        self._storage = storage
        self._folder = folder
        self._disk = disk
        self._model = model
        self._keep_s = config.keep_s
        self._max_unfinished = config.max_unfinished
        self._now = unix_time
        self.is_new = asyncio.Event()
        """Set when a batch is created or cancelled."""

    async def create(self, new: NewBatch, caller: Caller) -> Batch:
        """Raises Overloaded, StorageUnavailable."""
        if len(await self._unfinished(caller.owner)) >= self._max_unfinished:
            raise Overloaded(
                f"{self._max_unfinished} of your batches wait or run already, which is "
                "gateway.batches.max_unfinished; wait for one, or cancel one",
                retry_after_s=60.0,
            )
        now = self._now()
        batch = Batch(
            id=new_id("batch_", now),
            endpoint=new.endpoint,
            model=self._model,
            input_file_id=new.input_file_id,
            created_at=int(now),
            expires_at=int(now) + WINDOW_S,
            metadata=new.metadata,
            request_counts=RequestCounts(total=new.num_lines),
        )
        order = BatchOrder(
            owner=caller.owner, models=caller.models, batch=batch, output_ttl_s=new.output_ttl_s
        )
        await self._call(self._folder.create, order)
        self.is_new.set()
        return batch

    async def get(self, batch_id: str, owner: str) -> Batch:
        """Raises NotKept, StorageUnavailable."""
        batch = await self._call(self._under_way, batch_id, owner)
        batch = batch or await self.kept(batch_id, owner)
        if batch is None:
            raise NotKept(f"there is no batch {batch_id!r} of yours here")
        return batch

    async def cancel(self, batch_id: str, owner: str) -> Batch:
        """Safe to repeat. Raises InvalidRequest if it is over, NotKept,
        StorageUnavailable."""
        batch = await self.get(batch_id, owner)
        if batch.status == "cancelled":
            return batch
        if batch.status in OVER:
            raise InvalidRequest(f"{batch_id} is over: it is {batch.status}, and stays so")
        await self._call(self._folder.cancel, batch_id)
        self.is_new.set()
        return await self.get(batch_id, owner)

    async def delete(self, batch_id: str, owner: str) -> None:
        """Delete its record, not its files. Raises InvalidRequest if it is not over,
        NotKept, StorageUnavailable."""
        batch = await self.get(batch_id, owner)
        if batch.status not in OVER:
            raise InvalidRequest(f"{batch_id} is {batch.status}; cancel it, and wait until it ends")
        await self._storage.delete(Place(KIND, owner, batch_id))

    async def ids(self, owner: str) -> list[str]:
        """The oldest first. Raises StorageUnavailable."""
        unfinished = await self._unfinished(owner)  # first: one may end in between
        over = await self._storage.entries(KIND, owner)
        return sorted({*unfinished, *(metadata.id for metadata in over)})

    def _under_way(self, batch_id: str, owner: str) -> Batch | None:
        order = self._folder.order(batch_id)
        if order is None or order.owner != owner:
            return None
        batch = self._folder.state(order)
        # Its order is removed first: while the order exists, so did its state.
        return batch if self._folder.order(batch_id) is not None else None

    async def _unfinished(self, owner: str) -> list[str]:
        def find() -> list[str]:
            orders = [self._folder.order(batch_id) for batch_id in self._folder.ids()]
            return [order.batch.id for order in orders if order and order.owner == owner]

        return await self._call(find)

    async def kept(self, batch_id: str, owner: str) -> Batch | None:
        """The batch, if it is over. Raises StorageUnavailable."""
        encoded = await self._storage.get(Place(KIND, owner, batch_id))
        return None if encoded is None else msgspec.json.decode(encoded, type=Batch)

    async def keep(self, batch: Batch, owner: str) -> None:
        """Keep the batch's final state. Raises StorageFull, StorageUnavailable."""
        place, encoded = Place(KIND, owner, batch.id), msgspec.json.encode(batch)
        await self._storage.put(place, encoded, ttl_s=self._keep_s, fsync=True)

    async def _call(self, work: Callable[..., R], *args: object) -> R:
        """Raises StorageUnavailable."""
        try:
            return await self._disk(work, *args)
        except OSError as error:
            raise StorageUnavailable(
                f"batches cannot be read or written now ({error.strerror or error}); try again"
            ) from error
