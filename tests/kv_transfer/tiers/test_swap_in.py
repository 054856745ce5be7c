from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kv_transfer.tiers.pool_world import FORMAT, SIZE, PoolWorld, host, running_world

from baton.core.block_hash import block_hashes, root_hash
from baton.kv_transfer.tiers.config import TiersConfig
from baton.kv_transfer.tiers.media.disk import DiskTier
from baton.kv_transfer.tiers.media.host import HostTier
from baton.kv_transfer.tiers.media.record import BlockRecord

PROMPT = tuple(range(6 * SIZE + 1))
CONFIG = TiersConfig(min_tokens=SIZE, deadline_s=30.0)


async def left_the_device(world: PoolWorld, *prompts: Sequence[int]) -> None:
    for prompt in prompts:
        await world.compute(prompt)
        await world.written_back()
    await world.push_out()
    await world.written_back()


conversations = st.lists(
    st.tuples(
        st.sampled_from([b"", b"one", b"two"]),
        st.lists(st.integers(0, 2), min_size=1, max_size=4),  # turns: a tree of prompts
        st.booleans(),
    ),
    min_size=1,
    max_size=25,
)


@settings(max_examples=30, deadline=None)
@given(conversations, st.integers(2, 12), st.integers(2, 12))
async def test_whatever_was_asked_before_what_is_found_has_the_right_bytes(
    asked: list[tuple[bytes, list[int], bool]], host_blocks: int, disk_blocks: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        disk = DiskTier(FORMAT, Path(folder), disk_blocks * FORMAT.file_bytes)
        async with running_world(host(host_blocks), disk, num_blocks=10) as world:
            for salt, turns, is_waiting in asked:
                prompt = [100 * turn + n for turn in turns for n in range(2 * SIZE + 1)]
                await world.swap_in(prompt, salt)  # checks the bytes of every block it finds
                assert (await world.audit()).violations == ()
                if is_waiting:
                    await world.written_back()
            for tier in (world.tiers.stack.metrics(),):
                assert tier['tier_bytes{tier="host"}'] <= host_blocks * FORMAT.record_bytes
                assert tier['tier_bytes{tier="disk"}'] <= disk_blocks * FORMAT.file_bytes


async def test_what_the_device_still_has_is_not_read() -> None:
    async with running_world() as world:
        await world.compute(PROMPT)
        await world.written_back()

        num_cached, note = await world.swap_in(PROMPT)

        assert num_cached == 6 * SIZE and note == ""
        assert world.tiers.metrics()['tier_hits_total{tier="host"}'] == 0


async def test_fewer_tokens_than_it_takes_are_computed() -> None:
    config = replace(CONFIG, min_tokens=6 * SIZE + 1)
    async with running_world(config=config) as world:
        await left_the_device(world, PROMPT)

        assert await world.swap_in(PROMPT) == (0, "")
        assert world.tiers.metrics()['tier_misses_total{tier="host"}'] == 0  # not even looked for


async def test_a_prompt_computed_faster_than_it_is_read_is_computed() -> None:
    async with running_world() as world:
        await left_the_device(world, PROMPT)
        num_cached, _ = await world.swap_in(PROMPT)
        assert num_cached == 6 * SIZE  # how long this took is known now
        await world.push_out()
        await world.written_back()
        rate = world.tiers._read_policy.read_bytes["host"]
        rate.observe(1, 1e6)
        await world.owner.call(lambda: world.tiers.ran(1_000_000, 0.001))

        assert await world.swap_in(PROMPT) == (0, "")


class HangingTier(HostTier):
    is_slow = True

    def __init__(self) -> None:
        super().__init__(FORMAT, 1000 * FORMAT.record_bytes)
        self.name = "disk"
        self.may_go_on = threading.Event()
        self.is_reading = threading.Event()

    def read(self, names: Sequence[bytes]) -> list[BlockRecord]:
        records = super().read(names)
        self.is_reading.set()
        self.may_go_on.wait(30)
        return records


async def test_a_tier_that_hangs_is_not_waited_for_longer_than_the_deadline() -> None:
    hanging = HangingTier()
    async with running_world(hanging, config=replace(CONFIG, deadline_s=0.05)) as world:
        await left_the_device(world, PROMPT)

        num_cached, note = await world.swap_in(PROMPT)

        assert num_cached == 0 and "took longer than 0.05 s" in note
        assert world.tiers.metrics()["tier_late_total"] == 1
        await world.assert_nothing_is_held()
        hanging.may_go_on.set()


async def test_a_request_that_is_cancelled_while_it_waits_leaves_nothing() -> None:
    hanging = HangingTier()
    async with running_world(hanging) as world:
        await left_the_device(world, PROMPT)

        waiting = asyncio.create_task(world.swap_in(PROMPT))
        await asyncio.to_thread(hanging.is_reading.wait, 60)
        assert (await world.audit()).leased == 6
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

        await world.assert_nothing_is_held()
        hanging.may_go_on.set()


async def test_kv_struck_while_it_is_read_comes_back_neither_to_the_pool_nor_to_a_tier() -> None:
    hanging = HangingTier()
    async with running_world(host(16), hanging) as world:
        await left_the_device(world, PROMPT)
        reading = asyncio.create_task(world.swap_in(PROMPT))
        await asyncio.to_thread(hanging.is_reading.wait, 60)
        root = root_hash(FORMAT.layout.model_fingerprint, b"")
        names = list(block_hashes(root, PROMPT, SIZE))
        assert all(map(world.tiers.stack.holds, names))

        for name in names:
            await world.owner.call(partial(world.tiers.stack.discard, name))
        hanging.may_go_on.set()

        assert (await reading)[0] == 0
        await world.written_back()
        assert {hanging.holds(name) for name in names} == {False}


async def test_kv_that_finds_no_room_on_the_device_is_read_ahead_into_host_memory(
    tmp_path: Path,
) -> None:
    disk = DiskTier(FORMAT, tmp_path, 1000 * FORMAT.file_bytes)
    async with running_world(host(16), disk) as world:
        await left_the_device(world, PROMPT)
        assert world.tiers.metrics()['tier_blocks{tier="disk"}'] >= 6
        world.receiver._config = replace(world.receiver._config, max_leased_fraction=0.01)

        num_cached, note = await world.swap_in(PROMPT)

        assert num_cached == 0 and "no blocks left" in note
        async with asyncio.timeout(60):
            while world.tiers.metrics()['tier_hits_total{tier="disk"}'] < 6:
                await asyncio.sleep(0.001)


async def test_a_broken_block_costs_itself_and_what_follows_and_no_more(tmp_path: Path) -> None:
    disk = DiskTier(FORMAT, tmp_path, 1000 * FORMAT.file_bytes)
    async with running_world(disk) as world:
        await left_the_device(world, PROMPT)
        root = root_hash(FORMAT.layout.model_fingerprint, b"")
        fourth = list(block_hashes(root, PROMPT, SIZE))[3]
        (tmp_path / "v1" / "slot-0" / FORMAT.file_name(fourth)).write_bytes(b"torn")

        num_cached, note = await world.swap_in(PROMPT)

        assert num_cached == 3 * SIZE
        assert "was broken" in note and f"swapped in {3 * SIZE} tokens from disk" in note
        assert world.tiers.metrics()['tier_corrupt_total{tier="disk"}'] == 1
