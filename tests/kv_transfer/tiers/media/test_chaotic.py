"""Whatever a tier does to blocks: what is found in the pool has the right bytes."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kv_transfer.tiers.blocks import names_of, record_of
from tests.kv_transfer.tiers.pool_world import FORMAT, SIZE, host, running_world

from baton.core.chaos import POINTS, Chaos, ChaosRule, Fault
from baton.kv_transfer.tiers.media.chaotic import ChaoticTier
from baton.kv_transfer.tiers.media.disk import DiskTier


def rule(point: str, fault: Fault, rate: float = 1.0) -> ChaosRule:
    return ChaosRule(at=point, fault=fault, rate=rate, delay_s=0.001)


FAULTS = [
    (point, fault)
    for point in ("tier.read", "tier.write")
    for fault in sorted(POINTS[point] - {Fault.KILL})
]
HARMLESS = {
    ("tier.read", Fault.DELAY),
    ("tier.read", Fault.CORRUPT),  # each time another bit: what is asked for again comes well
    ("tier.write", Fault.DELAY),
}


@pytest.mark.parametrize(("point", "fault"), FAULTS)
async def test_each_fault_costs_time_or_computing_and_nothing_else(
    tmp_path: Path, point: str, fault: Fault
) -> None:
    chaos = Chaos([rule(point, fault)], seed=1)
    disk = DiskTier(FORMAT, tmp_path, 1000 * FORMAT.file_bytes)
    prompt = range(6 * SIZE + 1)
    async with running_world(ChaoticTier(disk, chaos)) as world:
        await world.compute(prompt)
        await world.written_back()
        await world.push_out()
        await world.written_back()

        num_cached, note = await world.swap_in(prompt)  # checks the bytes of what it finds

        is_read_again = (point, fault) == ("tier.read", Fault.CORRUPT)
        assert ("asked for again; swapped in" in note) == is_read_again
        assert bool(world.receiver.counters.num_asked_again) == is_read_again
        assert chaos.injected
        assert num_cached == (6 * SIZE if (point, fault) in HARMLESS else 0)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 1 << 30),
    st.lists(st.tuples(st.sampled_from(FAULTS), st.floats(0.05, 0.5)), max_size=4),
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), min_size=1, max_size=15),
)
async def test_under_any_faults_what_is_found_has_the_right_bytes_and_nothing_stays_held(
    seed: int, rates: list[tuple[tuple[str, Fault], float]], asked: list[list[int]]
) -> None:
    chaos = Chaos([rule(*at, rate) for at, rate in rates], seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        disk = DiskTier(FORMAT, Path(folder), 8 * FORMAT.file_bytes)
        tiers = (ChaoticTier(host(4), chaos), ChaoticTier(disk, chaos))
        async with running_world(*tiers, num_blocks=10) as world:
            for turns in asked:
                await world.swap_in([100 * t + n for t in turns for n in range(2 * SIZE + 1)])
                await world.written_back()
                assert (await world.audit()).violations == ()


def test_a_harmed_block_is_another_one_than_the_one_that_was_given() -> None:
    tier = ChaoticTier(host(), Chaos([rule("tier.write", Fault.CORRUPT)], seed=1))
    whole = record_of(1, FORMAT)

    tier.put(whole)

    (kept,) = tier.read(names_of(1))
    assert FORMAT.is_whole(whole) and not FORMAT.is_whole(kept)
