"""What is kept is there as it was written, for who it belongs to, or it is not there."""

from __future__ import annotations

import asyncio
import fcntl
import os
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from baton.core.clock import ManualClock
from baton.core.errors import StorageFull, StorageUnavailable
from baton.gateway.storage.folder import MAX_LOCK_WAITERS, Place, StorageFolder
from baton.gateway.storage.storage import Storage

MINE = Place("response", "tenant a", "resp_1")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1e9)


@pytest.fixture
async def storage(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Storage]:
    kept = Storage(StorageFolder(tmp_path / "kept", 4000, unix_time=clock))
    await kept.start()
    yield kept
    await kept.close()


def files_in(folder: Path) -> list[Path]:
    """Those of values, written or being written: the folder is probed meanwhile."""
    return [path for path in folder.rglob("*") if path.is_file() and path.parent != folder]


async def test_a_value_is_its_owners_until_it_expires_or_is_deleted(
    storage: Storage, clock: ManualClock, tmp_path: Path
) -> None:
    await storage.put(MINE, b"first", ttl_s=60)
    await storage.put(MINE, b"second", ttl_s=60)
    other = Storage(StorageFolder(tmp_path / "kept", 4000, unix_time=clock))  # another gateway
    assert await other.get(MINE) == b"second"
    assert await other.get(Place("response", "tenant b", "resp_1")) is None
    assert await other.get(Place("file", "tenant a", "resp_1")) is None
    for escaping in ("../resp_1", ".", "", "a/b", "x" * 201, "\0"):
        assert await storage.get(Place("response", "tenant a", escaping)) is None
        assert not await storage.delete(Place("response", "tenant a", escaping))
    assert [(one.owner, one.id) for one in await other.entries("response")] == [
        ("tenant a", "resp_1")
    ]
    clock.advance(61)
    assert await storage.get(MINE) is None
    assert await storage.entries("response", "tenant a") == []
    assert not await storage.delete(MINE)
    await storage.put(MINE, b"kept", ttl_s=None)
    clock.advance(1e9)
    assert await other.get(MINE) == b"kept"
    assert await storage.delete(MINE) and not await storage.delete(MINE)
    await other.close()


@pytest.mark.parametrize("does", ["changes", "deletes"])
async def test_of_two_gateways_that_change_a_value_at_once_the_second_finds_what_the_first_made(
    storage: Storage, tmp_path: Path, does: str
) -> None:
    other = Storage(StorageFolder(tmp_path / "kept", 4000))
    is_changing, may_proceed = threading.Event(), threading.Event()

    def slowly(value: bytes | None) -> bytes:
        is_changing.set()
        may_proceed.wait(30)
        return (value or b"nothing") + b", completed"

    def cancelled(value: bytes | None) -> bytes | None:
        return None if value is None or b"completed" in value else b"cancelled"

    await storage.put(MINE, b"begun", ttl_s=None)
    first = asyncio.create_task(storage.change(MINE, slowly, ttl_s=None))
    await asyncio.to_thread(is_changing.wait, 30)
    second: asyncio.Task[object] = asyncio.create_task(
        other.change(MINE, cancelled, ttl_s=None) if does == "changes" else other.delete(MINE)
    )
    await asyncio.wait([second], timeout=0.1)  # it gets as far as it can
    may_proceed.set()

    assert await first == b"begun, completed"
    assert await second == (b"begun, completed" if does == "changes" else True)
    assert await storage.get(MINE) == (b"begun, completed" if does == "changes" else None)
    await other.close()


@pytest.mark.parametrize("harm", ["cut", "flipped", "appended", "empty", "another", "link"])
async def test_garbage_in_the_folder_is_not_there(
    storage: Storage, tmp_path: Path, harm: str
) -> None:
    await storage.put(MINE, b"x" * 100, ttl_s=60)
    (path,) = files_in(tmp_path)
    data = path.read_bytes()
    harmed = {
        "cut": data[:-1],
        "flipped": b"y" + data[1:],
        "appended": data + b"x",
        "empty": b"",
        "another": data.replace(b"tenant a", b"tenant b"),
        "link": data,
    }
    path.write_bytes(harmed[harm])
    if harm == "link":
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
        with pytest.raises(StorageUnavailable):
            await storage.get(MINE)
        return
    assert await storage.get(MINE) is None
    await storage.put(MINE, b"anew", ttl_s=60)
    assert await storage.get(MINE) == b"anew"


async def test_a_large_value_is_there_once_it_is_whole(storage: Storage, tmp_path: Path) -> None:
    place = Place("file", "", "file-1")
    with pytest.raises(RuntimeError, match="the client left"):
        async with storage.writing(place, ttl_s=None) as file:
            await file.write(b"some of it")
            raise RuntimeError("the client left")
    async with storage.writing(place, ttl_s=None) as file:
        await file.write(b"ab" * 500)
        async with storage.reading(place) as absent:
            assert absent is None
        await file.write(b"cd" * 500)
        assert file.num_bytes == 2000
    async with storage.reading(place) as found:
        assert found is not None and found.metadata.num_bytes == 2000
        await storage.delete(place)  # a reader reads on
        assert b"".join([chunk async for chunk in found]) == b"ab" * 500 + b"cd" * 500
    assert files_in(tmp_path) == []


async def test_the_oldest_of_who_has_most_make_room_and_files_do_not(
    storage: Storage, clock: ManualClock, tmp_path: Path
) -> None:
    def place(owner: str, number: int) -> Place:
        return Place("response", owner, f"resp_{number}")

    await storage.put(place("small", 0), b"s" * 300, ttl_s=60, evicts=True)
    for number in range(12):
        await storage.put(place("large", number), b"l" * 300, ttl_s=60, evicts=True)
        clock.advance(1)
    assert await storage.get(place("small", 0)) == b"s" * 300
    assert await storage.get(place("large", 0)) is None
    assert await storage.get(place("large", 11)) == b"l" * 300
    assert sum(path.stat().st_size for path in files_in(tmp_path)) <= 4200
    with pytest.raises(StorageFull, match=r"all 4000 bytes of gateway\.storage\.max_bytes"):
        await storage.put(Place("file", "", "file-1"), b"f" * 3000, ttl_s=None)
    with pytest.raises(StorageFull):
        await storage.put(place("large", 99), b"l" * 4001, ttl_s=60, evicts=True)
    assert await storage.get(place("small", 0)) == b"s" * 300


async def test_what_others_have_in_the_folder_is_left_alone(
    storage: Storage, clock: ManualClock, tmp_path: Path
) -> None:
    """Old files of no shape of ours, and folders that cannot be read."""
    await storage.put(MINE, b"mine", ttl_s=60)
    (owner,) = (tmp_path / "kept" / "response").iterdir()
    foreign = [
        tmp_path / "kept" / name
        for name in ("model.bin", ".hidden", "models/model.bin", f"models/{owner.name}/model.bin")
    ]
    foreign += [owner.parent / "model.bin", owner / "a file of somebody", owner / ".hidden"]
    for path in foreign:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"a model")
        os.utime(path, (0, 0))

    folder = StorageFolder(tmp_path / "kept", 4000, unix_time=clock)
    folder.open()
    assert all(path.exists() for path in foreign)
    assert folder.num_bytes == sum(path.stat().st_size for path in owner.glob("resp_*"))


async def test_a_sweep_leaves_what_holds_and_what_is_being_written(
    storage: Storage, clock: ManualClock, tmp_path: Path
) -> None:
    folder = StorageFolder(tmp_path / "kept", 4000, unix_time=clock)
    await storage.put(MINE, b"short", ttl_s=60)
    await storage.put(Place("response", "", "resp_2"), b"long", ttl_s=1e6)
    with pytest.raises(StorageUnavailable):
        async with storage.writing(Place("file", "", "file-1"), ttl_s=None) as file:
            await file.write(b"f")
            (begun,) = (tmp_path / "kept" / "file").rglob(".file-1.*")
            os.utime(begun, (clock(), clock()))
            clock.advance(120)
            folder.sweep()
            assert len(files_in(tmp_path)) == 2
            clock.advance(4000)
            folder.sweep()
            assert len(files_in(tmp_path)) == 1  # what is never ended is given up


async def test_a_folder_that_cannot_be_used_is_said_to_be(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no folder")
    storage = Storage(StorageFolder(tmp_path / "file", 4000))
    await storage.start()
    with pytest.raises(StorageUnavailable, match="Not a directory"):
        await storage.put(MINE, b"x", ttl_s=60)
    assert len(caplog.messages) == 1 and f"{tmp_path}/file cannot be used" in caplog.text
    (tmp_path / "file").unlink()
    await storage.put(MINE, b"x", ttl_s=60)
    await storage.close()


async def test_who_waits_for_a_disk_that_hangs_gives_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = Storage(StorageFolder(tmp_path / "kept", 4000))  # no sweep opens files beside it
    comes_back, num_calls = threading.Event(), 0

    def hang(path: Path, *args: object) -> int:
        nonlocal num_calls
        num_calls += 1
        comes_back.wait(120)
        raise FileNotFoundError

    await storage.put(MINE, b"x", ttl_s=60)
    with monkeypatch.context() as disk:
        disk.setattr("baton.gateway.storage.files.os.open", hang)
        for _ in range(8):  # more than there are threads
            with pytest.raises(StorageUnavailable, match="it does not answer"):
                await storage._call(storage._folder.reader, MINE, patience_s=0.01)
        comes_back.set()
    while storage._num_hanging:
        await asyncio.sleep(0.001)
    assert num_calls == 1
    assert await storage.get(MINE) == b"x"
    await storage.close()


async def test_a_gateway_that_is_stuck_with_a_lock_keeps_no_others_storage_from_the_rest(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("baton.gateway.storage.file_locks.LOCK_S", 3600.0)
    monkeypatch.setattr("baton.gateway.storage.file_locks.SHORT_S", 0.01)
    await storage.put(MINE, b"x", ttl_s=60)
    (path,) = files_in(tmp_path)
    elsewhere = Place("response", "tenant a", "resp_2")
    await storage.put(elsewhere, b"y", ttl_s=60)
    with path.open("rb") as stuck:
        fcntl.flock(stuck, fcntl.LOCK_EX)
        changes = [
            asyncio.create_task(storage.change(MINE, lambda old: (old or b"") + b"!", ttl_s=60))
            for _ in range(8)  # more than there are threads
        ]
        refused, waiting = set[asyncio.Task[bytes | None]](), set(changes)
        while len(refused) < 8 - MAX_LOCK_WAITERS:
            done, waiting = await asyncio.wait(
                waiting, timeout=60, return_when=asyncio.FIRST_COMPLETED
            )
            assert done, "all threads wait for the lock"
            refused |= done
        for one in refused:
            with pytest.raises(
                StorageUnavailable, match="other threads of this gateway wait for locks already"
            ):
                one.result()
        assert await storage.get(elsewhere) == b"y"
        assert not any(one.done() for one in waiting)
    assert len(await asyncio.gather(*waiting)) == MAX_LOCK_WAITERS
    assert await storage.get(MINE) == b"x!!"


async def test_who_changes_one_value_at_once_waits_for_a_slow_disk_and_is_not_refused(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("baton.gateway.storage.file_locks.SHORT_S", 0.005)
    await storage.put(MINE, b"x", ttl_s=60)

    def slowly(old: bytes | None) -> bytes:
        time.sleep(0.05)
        return (old or b"") + b"!"

    await asyncio.gather(*(storage.change(MINE, slowly, ttl_s=60) for _ in range(6)))

    assert await storage.get(MINE) == b"x" + 6 * b"!"
