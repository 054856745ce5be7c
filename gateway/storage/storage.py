"""Values by (kind, owner, id), shared by all gateways of a folder.

A disk may hang: its calls run on threads of their own and time out after `PATIENCE_S`; until a
hanging call has returned, further ones are refused at once. Failures raise StorageUnavailable; the
log has the reason.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from baton.core.errors import StorageUnavailable
from baton.core.metrics import Counter, Family, gauge
from baton.gateway.storage.config import StorageConfig
from baton.gateway.storage.files import FileReader, FileWriter
from baton.gateway.storage.folder import Place, StorageFolder
from baton.gateway.storage.record import CorruptRecord, Metadata

log = logging.getLogger(__name__)

R = TypeVar("R")

NUM_THREADS = 4
PATIENCE_S = 10.0
LOOK_PATIENCE_S = 300.0
"""The most seconds for a call that lists the folder."""
SWEEP_S = 600.0


def storage_of(config: StorageConfig) -> Storage | None:
    """None where storage is off."""
    if not (config.folder and config.max_bytes):
        return None
    return Storage(StorageFolder(Path(config.folder).expanduser(), config.max_bytes))


class Storage:
    """One instance per gateway; belongs to its event loop."""

    def __init__(self, folder: StorageFolder) -> None:
        self._folder = folder
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="storage")
        self._sweeping: asyncio.Task[None] | None = None
        self._is_away = False
        self._failures = Counter(
            "baton_gateway_storage_failures_total",
            "Times that what is kept for clients could not be read or written",
        )
        self._num_hanging = 0
        """Disk calls that have timed out and not returned yet."""

    async def start(self) -> None:
        """Create the folder and sweep it periodically, in the background. While that fails, so do
        all calls, and the log says why."""
        self._sweeping = asyncio.create_task(self._sweep_on(), name="sweeps the storage")

    async def close(self) -> None:
        """Safe to repeat. Unfinished writes are aborted."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)

    def families(self) -> Iterator[Family]:
        yield gauge(
            "baton_gateway_storage_bytes",
            "Bytes of what is kept for clients, as far as this gateway knows",
            self._folder.num_bytes,
        )
        yield self._failures.family()

    def aside(self, name: str) -> Path:
        """A subfolder for other data of the same gateways, which is neither counted nor swept."""
        return self._folder.aside(name)

    async def put(
        self,
        place: Place,
        value: bytes,
        *,
        ttl_s: float | None,
        evicts: bool = False,
        fsync: bool = False,
    ) -> Metadata:
        """Store a value, replacing the old one. `ttl_s` None: until deleted. `evicts`: the oldest
        of its kind make room. Raises StorageFull, StorageUnavailable."""
        return await self._call(self._put, place, value, ttl_s, evicts, fsync)

    async def get(self, place: Place) -> bytes | None:
        """None if it is not there any more. Raises StorageUnavailable."""
        return await self._call(self._get, place)

    async def change(
        self,
        place: Place,
        changed: Callable[[bytes | None], bytes | None],
        *,
        ttl_s: float | None,
        evicts: bool = False,
    ) -> bytes | None:
        """Atomically replace the value with `changed(value)`, or leave it if that is None; return
        the value stored then. `changed` runs on another thread. Raises StorageFull,
        StorageUnavailable."""
        return await self._call(self._change, place, changed, ttl_s, evicts)

    async def delete(self, place: Place) -> bool:
        """Delete the value; whether it existed. Raises StorageUnavailable."""
        return await self._call(self._folder.delete, place)

    async def entries(self, kind: str, owner: str | None = None) -> list[Metadata]:
        """Values of `owner`, or of all owners; the oldest first. Raises StorageUnavailable."""
        return await self._call(self._folder.entries, kind, owner, patience_s=LOOK_PATIENCE_S)

    @asynccontextmanager
    async def writing(
        self, place: Place, *, ttl_s: float | None, fsync: bool = True
    ) -> AsyncIterator[Writing]:
        """Write a large value in parts; it exists once the block has ended without an error. Raises
        StorageFull, StorageUnavailable."""
        writer = await self._call(self._folder.begin, place, ttl_s)
        try:
            yield Writing(self, writer)
            await self._call(lambda: writer.commit(fsync=fsync))
        except BaseException:
            with suppress(RuntimeError):  # after `close` no thread can do it; a later sweep will
                self._threads.submit(writer.abort)
            raise

    @asynccontextmanager
    async def reading(self, place: Place) -> AsyncIterator[Reading | None]:
        """None if it is not there any more. Raises StorageUnavailable."""
        reader = await self._call(self._folder.reader, place)
        if reader is None:
            yield None
            return
        try:
            yield Reading(self, reader)
        finally:
            with suppress(RuntimeError):
                self._threads.submit(reader.close)

    def _put(
        self, place: Place, value: bytes, ttl_s: float | None, evicts: bool, fsync: bool
    ) -> Metadata:
        writer = self._folder.begin(place, ttl_s)
        try:
            writer.write(value, evicted_kind=place.kind if evicts else None)
            return writer.commit(fsync=fsync)
        except BaseException:
            writer.abort()
            raise

    def _change(
        self,
        place: Place,
        changed: Callable[[bytes | None], bytes | None],
        ttl_s: float | None,
        evicts: bool,
    ) -> bytes | None:
        with self._folder.lock(place):
            value = self._get(place)
            if (new := changed(value)) is None:
                return value
            self._put(place, new, ttl_s, evicts, False)
            return new

    def _get(self, place: Place) -> bytes | None:
        reader = self._folder.reader(place)
        if reader is None:
            return None
        try:
            return reader.read_all()
        except CorruptRecord:
            return None
        finally:
            reader.close()

    async def _sweep_on(self) -> None:
        """Sweep the folder for ever."""
        while True:
            with suppress(StorageUnavailable):
                await self._call(self._folder.open, patience_s=LOOK_PATIENCE_S)
            await asyncio.sleep(SWEEP_S)

    async def _call(
        self, work: Callable[..., R], *args: object, patience_s: float = PATIENCE_S
    ) -> R:
        """Raises StorageUnavailable."""
        try:
            if self._num_hanging:
                raise TimeoutError
            result = await self._run(partial(work, *args), patience_s)
        except (OSError, CorruptRecord) as error:  # TimeoutError is among the first
            why = getattr(error, "strerror", None) or str(error) or "it does not answer"
            if not self._is_away:
                log.error("%s cannot be used: %s", self._folder.folder, str(error) or why)
            self._is_away = True
            self._failures.add(1)
            raise StorageUnavailable(
                f"the storage cannot be read or written now ({why}); try again later, or notify "
                "the operator: the gateway's log names the folder"
            ) from error
        if self._is_away:
            log.info("%s can be used again", self._folder.folder)
        self._is_away = False
        return result

    async def _run(self, work: Callable[[], R], patience_s: float) -> R:
        """Run `work` on a thread. Raises its errors, or TimeoutError while it continues."""
        loop = asyncio.get_running_loop()
        running = self._threads.submit(work)
        try:
            async with asyncio.timeout(patience_s):
                return await asyncio.wrap_future(running)
        except TimeoutError:
            if not running.done():
                self._num_hanging += 1
                running.add_done_callback(lambda _: loop.call_soon_threadsafe(self._on_return))
            raise

    def _on_return(self) -> None:
        self._num_hanging -= 1


class Writing:
    def __init__(self, storage: Storage, writer: FileWriter) -> None:
        self._storage = storage
        self._writer = writer

    @property
    def num_bytes(self) -> int:
        """Bytes written so far."""
        return self._writer.num_bytes

    def keep_for(self, ttl_s: float) -> None:
        """Set another time to live, counted from the beginning of the write."""
        self._writer.expires_at = self._writer.created_at + ttl_s

    async def write(self, data: bytes) -> None:
        """Raises StorageFull, StorageUnavailable; out of the block with it."""
        await self._storage._call(self._writer.write, data)


class Reading:
    """Iterate for its bytes, in chunks. Raises StorageUnavailable, at its end if it is corrupt."""

    def __init__(self, storage: Storage, reader: FileReader) -> None:
        self._storage = storage
        self._reader = reader
        self.metadata: Metadata = reader.metadata

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while data := await self._storage._call(self._reader.read):
            yield data
