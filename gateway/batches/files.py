"""Files that clients upload and batches write: content and description, stored separately.

file/ID         the content, streamed
file_info/ID    FileObject, written last: until then the file does not exist
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Literal

import msgspec

from baton.core.errors import NotKept, StorageFull, StorageUnavailable
from baton.gateway.batches.records import new_id
from baton.gateway.storage.folder import Place
from baton.gateway.storage.storage import Reading, Storage, Writing

CONTENT, INFO = "file", "file_info"
Purpose = Literal["batch", "batch_output"]


class FileObject(msgspec.Struct, kw_only=True):
    """Times are Unix seconds."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    expires_at: int | None = None
    filename: str
    purpose: Purpose
    status: Literal["processed"] = "processed"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewFile:
    owner: str
    """The owner id, as `Caller.owner`."""
    filename: str
    purpose: Purpose
    ttl_s: float
    id: str = ""
    """The id of a file that may be written again, in place of the first; empty: a new one."""


class FileWriting:
    def __init__(self, file_id: str, new: NewFile, writing: Writing) -> None:
        self.file_id = file_id
        self.filename = new.filename
        self.ttl_s = new.ttl_s
        """May be lowered until the file is complete."""
        self.info: FileObject | None = None
        """Set once the file is complete."""
        self._writing = writing

    async def write(self, data: bytes) -> None:
        """Raises StorageFull, StorageUnavailable; out of the block with it."""
        await self._writing.write(data)


class Files:
    def __init__(self, storage: Storage, unix_time: Callable[[], float] = time.time) -> None:
        self._storage = storage
        self._now = unix_time

    async def check_room(self, owner: str, max_bytes: int) -> None:
        """Raises StorageFull if the owner's files take `max_bytes` or more; StorageUnavailable."""
        kept = await self._storage.entries(CONTENT, owner)
        num_bytes = sum(metadata.num_bytes for metadata in kept)
        if num_bytes >= max_bytes:
            raise StorageFull(
                f"your files take {num_bytes} bytes, and gateway.batches.max_kept_bytes is "
                f"{max_bytes}; delete what is not needed any more",
                retry_after_s=60.0,
            )

    @asynccontextmanager
    async def writing(self, new: NewFile) -> AsyncIterator[FileWriting]:
        """Write a file, which exists once the block has ended without an error. Raises StorageFull,
        StorageUnavailable."""
        now = self._now()
        file_id = new.id or new_id("file-", now)
        content = Place(CONTENT, new.owner, file_id)
        async with self._storage.writing(content, ttl_s=new.ttl_s) as writing:
            file = FileWriting(file_id, new, writing)
            yield file
            writing.keep_for(file.ttl_s)
        file.info = FileObject(
            id=file_id,
            bytes=writing.num_bytes,
            created_at=int(now),
            expires_at=int(now + file.ttl_s),
            filename=file.filename,
            purpose=new.purpose,
        )
        encoded = msgspec.json.encode(file.info)
        try:
            await self._storage.put(
                Place(INFO, new.owner, file_id), encoded, ttl_s=file.ttl_s, fsync=True
            )
        except BaseException:  # no client knows of it
            with suppress(StorageUnavailable):
                await self._storage.delete(content)
            raise

    async def info(self, file_id: str, owner: str) -> FileObject:
        """Raises NotKept, StorageUnavailable."""
        encoded = await self._storage.get(Place(INFO, owner, file_id))
        if encoded is None:
            raise _missing(file_id)
        return msgspec.json.decode(encoded, type=FileObject)

    async def delete(self, file_id: str, owner: str) -> None:
        """Raises NotKept, StorageUnavailable."""
        was_there = await self._storage.delete(Place(INFO, owner, file_id))
        await self._storage.delete(Place(CONTENT, owner, file_id))
        if not was_there:
            raise _missing(file_id)

    async def ids(self, owner: str) -> list[str]:
        """The oldest first. Raises StorageUnavailable."""
        return sorted(metadata.id for metadata in await self._storage.entries(INFO, owner))

    @asynccontextmanager
    async def reading(self, file_id: str, owner: str) -> AsyncIterator[Reading]:
        """Raises NotKept, StorageUnavailable."""
        async with self._storage.reading(Place(CONTENT, owner, file_id)) as reading:
            if reading is None:
                raise _missing(file_id)
            yield reading


def _missing(file_id: str) -> NotKept:
    return NotKept(f"there is no file {file_id!r} of yours here, or it has expired")
