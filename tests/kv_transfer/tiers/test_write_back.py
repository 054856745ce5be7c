from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest
from tests.kv_transfer.tiers.pool_world import FORMAT, SIZE, PoolWorld, host, running_world

from baton.core.block_hash import block_hashes, root_hash
from baton.core.kv_pool import Holder, HolderKind
from baton.kv_transfer.tiers.media.record import BlockRecord

PROMPT = tuple(range(4 * SIZE + 2))


def names(tokens: Sequence[int], salt: bytes = b"") -> list[bytes]:
    root = root_hash(FORMAT.layout.model_fingerprint, salt)
    return list(block_hashes(root, tokens, SIZE))


async def test_every_full_block_is_written_once_and_nothing_stays_held() -> None:
    async with running_world() as world:
        await world.compute(PROMPT)
        await world.written_back()
        await world.compute(PROMPT)
        await world.compute([*PROMPT[: 2 * SIZE], *range(900, 900 + 2 * SIZE)])
        await world.written_back()

        metrics = world.tiers.metrics()
        assert (
            metrics['tier_blocks{tier="host"}']
            == metrics['tier_written_total{tier="host"}']
            == 4 + 2
        )
        assert metrics["tier_write_back_missed_total"] == 0


class StuckCopies:
    """Copying waits until it may go on."""

    def __init__(self, world: PoolWorld, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_go_on = threading.Event()
        format_ = world.tiers.stack.format
        make = format_.make

        def make_later(name: bytes, payload: bytes | bytearray) -> BlockRecord:
            self.may_go_on.wait(30)
            return make(name, payload)

        monkeypatch.setattr(format_, "make", make_later)


async def holds(world: PoolWorld, num_blocks: int) -> None:
    """Wait until so many blocks are held to be copied."""
    async with asyncio.timeout(60):
        while len(await world.lease_ids()) != num_blocks:
            await asyncio.sleep(0.001)


async def test_blocks_being_copied_are_leased_few_at_once_and_cannot_be_reused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running_world(num_blocks=16) as world:
        stuck = StuckCopies(world, monkeypatch)
        await world.compute(PROMPT)

        await holds(world, 2)  # an eighth of the pool
        report = await world.audit()
        assert report.leased == 2 and report.violations == ()
        everything = range(7000, 7000 + 16 * SIZE)
        holder = Holder(HolderKind.REQUEST, "too large for what is left")
        assert await world.owner.call(lambda: world.pool.reserve(holder, everything, b"")) is None

        stuck.may_go_on.set()
        await world.written_back()
        assert world.tiers.metrics()['tier_blocks{tier="host"}'] == 4


async def test_a_block_evicted_before_its_turn_is_counted_and_not_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running_world(num_blocks=8) as world:
        stuck = StuckCopies(world, monkeypatch)
        await world.compute(PROMPT)
        await holds(world, 1)
        await world.compute(range(500, 500 + 7 * SIZE))  # all but the one that is held

        stuck.may_go_on.set()
        await world.written_back()

        assert world.tiers.metrics()["tier_write_back_missed_total"] == 3
        assert not any(world.tiers.stack.holds(name) for name in names(PROMPT)[1:])


@pytest.mark.parametrize("is_copied", [False, True])
async def test_kv_found_to_be_wrong_is_in_no_tier(
    monkeypatch: pytest.MonkeyPatch, is_copied: bool
) -> None:
    async with running_world() as world:
        stuck = StuckCopies(world, monkeypatch)
        if is_copied:
            stuck.may_go_on.set()
        await world.compute(PROMPT)
        holder = Holder(HolderKind.REQUEST, "not finite")
        await world.owner.call(lambda: world.pool.reserve(holder, PROMPT, b""))
        if is_copied:
            await world.written_back()
            assert all(map(world.tiers.stack.holds, names(PROMPT)))
        else:
            await holds(world, 2)

        await world.owner.call(lambda: world.pool.forget(holder))
        await world.owner.call(lambda: world.pool.release(holder))
        stuck.may_go_on.set()
        await world.written_back()

        assert not any(map(world.tiers.stack.holds, names(PROMPT)))
        assert (await world.audit()).violations == ()


async def test_closing_in_the_middle_of_copying_lets_everything_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running_world() as world:
        stuck = StuckCopies(world, monkeypatch)
        await world.compute(PROMPT)
        await holds(world, 2)

        closing = asyncio.create_task(world.tiers.close())
        stuck.may_go_on.set()
        await closing

        await world.assert_nothing_is_held()


async def test_a_block_that_came_from_a_tier_is_not_written_again() -> None:
    async with running_world(host()) as world:
        await world.compute(PROMPT)
        await world.written_back()
        await world.push_out()
        await world.written_back()
        num_written = world.tiers.metrics()['tier_written_total{tier="host"}']

        num_cached, _ = await world.swap_in(PROMPT)
        await world.written_back()

        assert num_cached == 4 * SIZE
        assert world.tiers.metrics()['tier_written_total{tier="host"}'] == num_written


async def test_a_copy_that_fails_lets_its_block_go_and_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running_world() as world:

        def fail(name: bytes, payload: bytes) -> BlockRecord:
            raise MemoryError

        monkeypatch.setattr(world.tiers.stack.format, "make", fail)
        await world.compute(PROMPT)
        await world.written_back()

        await world.assert_nothing_is_held()
        assert world.tiers.metrics()["tier_write_back_missed_total"] == 4
        assert world.tiers.metrics()['tier_blocks{tier="host"}'] == 0
