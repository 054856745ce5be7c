from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kv_transfer.tiers.blocks import (
    FORMAT,
    all_written,
    becomes_true,
    is_record_of,
    name_of,
    names_of,
    read_all,
    record_of,
)

from baton.kv_transfer.tiers import stack as stack_module
from baton.kv_transfer.tiers.level import NUM_READERS
from baton.kv_transfer.tiers.media.base import Tier
from baton.kv_transfer.tiers.media.disk import DiskTier
from baton.kv_transfer.tiers.media.host import HostTier
from baton.kv_transfer.tiers.media.record import BlockRecord
from baton.kv_transfer.tiers.media.store import StoreTier
from baton.kv_transfer.tiers.stack import TierPart, TierStack


def host(num_blocks: int) -> HostTier:
    return HostTier(FORMAT, num_blocks * FORMAT.record_bytes)


def disk(folder: Path, num_blocks: int) -> DiskTier:
    return DiskTier(FORMAT, folder / "disk", num_blocks * FORMAT.file_bytes)


def store(folder: Path) -> StoreTier:
    return StoreTier(FORMAT, str(folder / "store"), None)


@asynccontextmanager
async def running(
    *tiers: Tier, max_queued_blocks: int = 1000, write_through: Sequence[str] = ()
) -> AsyncIterator[TierStack]:
    stack = TierStack(
        FORMAT, tiers, max_queued_blocks=max_queued_blocks, write_through=write_through
    )
    stack.start()
    try:
        yield stack
    finally:
        await stack.close()


operations = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 20), st.just(1)),
        st.tuples(st.just("read"), st.integers(0, 20), st.integers(1, 20)),
    ),
    max_size=40,
)


@settings(max_examples=40, deadline=None)
@given(operations, st.integers(1, 4), st.integers(1, 5))
async def test_a_stack_over_an_unbounded_store_is_a_dict_and_no_capacity_is_exceeded(
    done: list[tuple[str, int, int]], host_blocks: int, disk_blocks: int
) -> None:
    written: set[int] = set()
    with tempfile.TemporaryDirectory() as folder:
        tiers = (host(host_blocks), disk(Path(folder), disk_blocks), store(Path(folder)))
        async with running(*tiers) as stack:
            for what, number, count in done:
                if what == "put":
                    stack.put(record_of(number))
                    written.add(number)
                    continue
                wanted = range(number, number + count)
                found = await read_all(stack, names_of(*wanted))
                expected = next((n for n in wanted if n not in written), wanted.stop) - number
                assert len(found) == expected
                assert all(map(is_record_of, found, wanted))
                stretches = await stack.find(names_of(*wanted))
                assert sum(stretch.num_blocks for stretch in stretches) == expected
                for tier in tiers[:2]:
                    assert tier.num_bytes <= (tier.capacity_bytes or 0)
            await all_written(stack)
            assert not any(tier.stats.num_dropped for tier in tiers)
            for number in written:
                assert len(await read_all(stack, names_of(number))) == 1
        files = list((Path(folder) / "disk").rglob("*.kv"))
        assert len(files) <= disk_blocks


async def test_what_overflows_moves_on_and_is_found_where_it_is(tmp_path: Path) -> None:
    async with running(host(2), disk(tmp_path, 2), store(tmp_path)) as stack:
        for number in range(6):
            stack.put(record_of(number))
            await all_written(stack)

        stretches = await stack.find(names_of(*range(7)))

        assert stretches == (TierPart("store", 2), TierPart("disk", 2), TierPart("host", 2))
        metrics = stack.metrics()
        assert metrics['tier_evicted_total{tier="host"}'] == 4
        assert metrics['tier_evicted_total{tier="disk"}'] == 2


async def test_what_is_read_from_a_slow_tier_is_in_the_fast_one_afterwards(tmp_path: Path) -> None:
    async with running(host(2), disk(tmp_path, 10)) as stack:
        for number in range(4):
            stack.put(record_of(number))
        await all_written(stack)

        await stack.promote(names_of(0, 1))

        assert await stack.find(names_of(0, 1)) == (TierPart("host", 2),)
        num_written = stack.metrics()['tier_written_total{tier="disk"}']
        stack.put(record_of(9))  # evicts one that the disk still has
        await all_written(stack)
        assert stack.metrics()['tier_written_total{tier="disk"}'] <= num_written + 2


async def test_a_store_that_is_written_through_has_every_block_at_once(tmp_path: Path) -> None:
    tiers = (host(10), disk(tmp_path, 10), store(tmp_path))
    async with running(*tiers, write_through=("store",)) as stack:
        stack.put(record_of(1))
        await all_written(stack)

        assert tiers[2].holds(name_of(1)) and tiers[0].holds(name_of(1))
        assert not tiers[1].holds(name_of(1))


class SlowTier(HostTier):
    """A disk that hangs until it is told to go on."""

    is_slow = True

    def __init__(self, num_blocks: int) -> None:
        super().__init__(FORMAT, num_blocks * FORMAT.record_bytes)
        self.name = "disk"
        self.may_go_on = threading.Event()
        self.num_reading = self.num_writing = 0

    def put(self, record: BlockRecord) -> bool:
        self.num_writing += 1
        self.may_go_on.wait(30)
        return super().put(record)

    def read(self, names: Sequence[bytes]) -> list[BlockRecord]:
        self.num_reading += 1
        self.may_go_on.wait(30)
        return super().read(names)


async def test_a_disk_that_hangs_holds_up_nobody_and_what_it_cannot_take_is_counted() -> None:
    slow = SlowTier(100)
    async with running(host(1), slow, max_queued_blocks=3) as stack:
        for number in range(10):
            stack.put(record_of(number))  # none of these waits

        assert slow.stats.num_dropped == 9 - 3
        assert len(await read_all(stack, names_of(0, 1, 2))) == 3  # they wait, but are found
        slow.may_go_on.set()
        await all_written(stack)
        assert slow.num_blocks >= 3


async def test_a_block_made_anew_while_the_wrong_one_is_being_written_is_the_one_that_is_kept() -> (
    None
):
    slow = SlowTier(100)
    async with running(slow) as stack:
        stack.put(record_of(1))
        becomes_true(lambda: slow.num_writing == 1)
        stack.discard(name_of(1))
        again = record_of(1)
        stack.put(again)

        slow.may_go_on.set()
        await all_written(stack)

        [batch] = [batch async for batch in stack.read(names_of(1))]
        assert batch.records[0] is again


class LateTier(SlowTier):
    """One whose readers are slow to remove what was discarded."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self.may_remove = threading.Event()
        self.num_removed_late = 0

    def remove(self, name: bytes) -> None:
        if "-read" in threading.current_thread().name:
            self.may_remove.wait(30)
            super().remove(name)
            self.num_removed_late += 1
        else:
            super().remove(name)


async def test_a_block_made_anew_is_not_removed_by_a_late_removal_of_the_wrong_one() -> None:
    late = LateTier(100)
    async with running(late) as stack:
        stack.put(record_of(1))
        becomes_true(lambda: late.num_writing == 1)
        stack.discard(name_of(1))
        stack.put(record_of(1))
        stack.put(record_of(2))
        late.may_go_on.set()
        becomes_true(lambda: late.holds(name_of(2)))  # others need not wait

        late.may_remove.set()
        becomes_true(lambda: late.num_removed_late == 1)
        await all_written(stack)

        assert late.holds(name_of(1))


class StubbornTier(SlowTier):
    """One that fails whenever it is to remove something."""

    def remove(self, name: bytes) -> None:
        raise OSError("it cannot be reached")


async def test_a_tier_that_fails_to_remove_a_block_takes_others_all_the_same() -> None:
    stubborn = StubbornTier(100)
    async with running(stubborn) as stack:
        stack.put(record_of(1))
        becomes_true(lambda: stubborn.num_writing == 1)
        stack.discard(name_of(1))
        stack.put(record_of(2))

        stubborn.may_go_on.set()
        await all_written(stack)

        assert stubborn.holds(name_of(2))
        becomes_true(lambda: stubborn.stats.num_errors == 2)


async def test_readers_stuck_in_a_tier_make_it_a_miss_for_the_others() -> None:
    slow = SlowTier(100)
    HostTier.put(slow, record_of(1))
    async with running(host(1), slow) as stack:
        stuck = [asyncio.create_task(read_all(stack, names_of(1))) for _ in range(NUM_READERS)]
        while slow.num_reading < NUM_READERS:
            await asyncio.sleep(0.001)

        assert await read_all(stack, names_of(1)) == []

        stuck[0].cancel()  # a deadline has passed: its thread is still stuck
        assert await read_all(stack, names_of(1)) == []
        slow.may_go_on.set()
        assert [len(found) for found in await asyncio.gather(*stuck[1:])] == [1, 1, 1]
        async with asyncio.timeout(60):
            while not await read_all(stack, names_of(1)):
                await asyncio.sleep(0.001)


async def test_a_block_broken_in_memory_is_found_and_removed(tmp_path: Path) -> None:
    async with running(host(10), disk(tmp_path, 10)) as stack:
        stack.put(record_of(1))
        payload = bytearray(record_of(2).payload)
        payload[3] ^= 1
        stack.put(BlockRecord(name_of(2), record_of(2).checksums, memoryview(payload)))

        assert await stack.recheck(names_of(1, 2, 3)) == 1

        assert stack.holds(name_of(1)) and not stack.holds(name_of(2))
        assert stack.metrics()['tier_corrupt_total{tier="host"}'] == 1


@pytest.fixture
def patient_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the disk is, nothing is dropped at the end."""
    monkeypatch.setattr(stack_module, "FLUSH_TIMEOUT_S", 60.0)
    monkeypatch.setattr(stack_module, "CLOSE_TIMEOUT_S", 60.0)


@pytest.mark.usefixtures("patient_end")
async def test_closing_writes_what_waits(tmp_path: Path) -> None:
    async with running(host(1), disk(tmp_path, 100)) as stack:
        for number in range(30):
            stack.put(record_of(number))

    again = disk(tmp_path, 100)
    again.open()
    assert again.num_leading(names_of(*range(30))) == 30


@pytest.mark.usefixtures("patient_end")
async def test_an_orderly_end_moves_what_only_memory_holds_to_the_disk(tmp_path: Path) -> None:
    async with running(host(20), disk(tmp_path, 10), max_queued_blocks=2) as stack:
        for number in range(20):
            stack.put(record_of(number))

    again = disk(tmp_path, 10)
    again.open()
    assert again.num_blocks == 10


async def test_a_disk_that_hangs_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack_module, "FLUSH_TIMEOUT_S", 0.01)
    monkeypatch.setattr(stack_module, "CLOSE_TIMEOUT_S", 0.01)
    slow = SlowTier(100)
    async with running(host(10), slow, max_queued_blocks=2) as stack:
        for number in range(10):
            stack.put(record_of(number))

    assert slow.stats.num_dropped == 2  # those that waited
    slow.may_go_on.set()


def test_many_threads_may_put_at_once(tmp_path: Path) -> None:
    tiers = (host(5), disk(tmp_path, 1000))
    stack = TierStack(FORMAT, tiers, max_queued_blocks=1000)
    stack.start()

    def put_every_fourth(start: int) -> None:
        for number in range(start, 100, 4):
            stack.put(record_of(number))

    threads = [threading.Thread(target=put_every_fourth, args=(start,)) for start in range(4)]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    becomes_true(lambda: not stack.metrics()['tier_waiting{tier="disk"}'])

    assert tiers[0].num_blocks == 5
    assert tiers[1].num_blocks == 95
    asyncio.run(stack.close())


@pytest.mark.parametrize("num_tiers", [1, 2, 3])
async def test_any_of_the_tiers_may_be_the_only_one(tmp_path: Path, num_tiers: int) -> None:
    tiers: list[Tier] = [store(tmp_path), disk(tmp_path, 5), host(5)]
    async with running(tiers[num_tiers - 1]) as stack:
        for number in range(4):
            stack.put(record_of(number))
        await all_written(stack)

        assert len(await read_all(stack, names_of(0, 1, 2, 3, 4))) == 4


class StickyTier(HostTier):
    """A disk that writes and removes when it may."""

    is_slow = True

    def __init__(self) -> None:
        super().__init__(FORMAT, 100 * FORMAT.record_bytes)
        self.name = "disk"
        self.may_put, self.may_remove = threading.Event(), threading.Event()
        self.is_putting, self.has_removed = threading.Event(), threading.Event()

    def put(self, record: BlockRecord) -> bool:
        self.is_putting.set()
        self.may_put.wait(30)
        return super().put(record)

    def remove(self, name: bytes) -> None:
        self.may_remove.wait(30)
        super().remove(name)
        self.has_removed.set()


@pytest.mark.parametrize("is_written_before", [True, False])
async def test_a_block_that_is_wrong_is_not_found_by_who_looks_before_it_is_removed(
    is_written_before: bool,
) -> None:
    sticky, fast = StickyTier(), host(8)
    async with running(fast, sticky, write_through=["disk"]) as stack:
        stack.put(record_of(1))
        await asyncio.to_thread(sticky.is_putting.wait, 30)
        if is_written_before:
            sticky.may_put.set()
            await all_written(stack)
            stack.discard(name_of(1))
        else:
            sticky.may_remove.set()
            stack.discard(name_of(1))
            await asyncio.to_thread(sticky.has_removed.wait, 30)  # nothing yet
            sticky.may_remove.clear()
            sticky.may_put.set()
            await asyncio.to_thread(becomes_true, lambda: sticky.holds(name_of(1)))

        assert await read_all(stack, names_of(1)) == []
        assert not stack.holds(name_of(1))
        sticky.may_remove.set()
        await asyncio.to_thread(becomes_true, lambda: not sticky.holds(name_of(1)))
        assert not fast.holds(name_of(1))
