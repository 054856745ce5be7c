"""The compiled table of holders answers as the one in dicts does, also when it is large."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable

import pytest
from tests.kernels.names.both_tables import TABLES

from baton.core.block_hash import BlockNames
from baton.kernels.names.holder_table import HolderTable

NUM_NAMES, NUM_SLOTS = 20_000, 130


def some_names(draw: random.Random, pool: list[bytes]) -> BlockNames:
    """A stretch of them, with holes."""
    start = draw.randrange(len(pool))
    stretch = pool[start : start + draw.choice([1, 40, 3000])]
    return BlockNames.of([name for name in stretch if draw.random() < 0.98])


@pytest.mark.skipif(len(TABLES) < 2, reason="nothing is compiled here")
def test_both_tables_hold_the_same_after_thousands_of_names_came_and_went() -> None:
    draw = random.Random(1)
    pool = [draw.randbytes(16) for _ in range(NUM_NAMES)]
    tables = [make() for make in TABLES]
    every_slot = (1 << NUM_SLOTS) - 1

    for _ in range(60):
        slot, names, is_added = (
            draw.randrange(NUM_SLOTS),
            some_names(draw, pool),
            draw.random() < 0.7,
        )
        changed = [
            table.add(slot, names) if is_added else table.remove(slot, names) for table in tables
        ]
        assert changed[0] == changed[1]
        start, live = draw.randrange(NUM_NAMES), every_slot & ~(1 << draw.randrange(NUM_SLOTS))
        asked = BlockNames.of(pool[start : start + 50])
        reference, compiled = (holders(table, asked, live) for table in tables)
        assert compiled == reference

    assert len(tables[0]) == len(tables[1]) > NUM_NAMES / 2
    dead = 0x5555 << 60 | 1
    for table in tables:
        sweep(table, dead)
    assert len(tables[0]) == len(tables[1])
    for name in pool[::200]:
        reference, compiled = (holders(table, BlockNames(name), every_slot) for table in tables)
        assert compiled == reference
        assert not any(dead >> slot & 1 for slot in compiled)


@pytest.mark.parametrize("make", TABLES)
def test_names_need_not_be_random(make: type[HolderTable]) -> None:
    table = make()
    names = BlockNames.of(number.to_bytes(16, "big") for number in range(10_000))

    assert table.add(7, names) == 10_000
    assert holders(table, names, 1 << 7) == {7: 10_000}
    assert table.remove(7, names[1::2]) == 5_000
    assert [bool(holders(table, names[n : n + 1], 1 << 7)) for n in range(4)] == [
        True,
        False,
        True,
        False,
    ]


@pytest.mark.parametrize("make", TABLES)
def test_a_table_that_all_have_left_is_empty(make: type[HolderTable]) -> None:
    table, draw = make(), random.Random(2)
    names = BlockNames.of(draw.randbytes(16) for _ in range(6000))
    for slot in (0, 1, 64, 200):
        assert table.add(slot, names) == 6000
    table.remove(64, names)

    sweep(table, 1 << 200 | 0b11)

    assert len(table) == 0
    assert holders(table, names, (1 << 201) - 1) == {}
    assert table.add(3, names) == 6000


@pytest.mark.skipif(len(TABLES) < 2, reason="nothing is compiled here")
def test_a_process_without_torch_has_the_compiled_table() -> None:
    script = (
        "import sys; from baton.router.cache.kv_index import KvIndex; "
        "print(type(KvIndex()._table).__name__, 'torch' in sys.modules)"
    )

    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )

    assert run.stdout.split() == ["CompiledTable", "False"]


def holders(table: HolderTable, names: BlockNames, live: int) -> dict[int, int]:
    """By slot of those that hold any: how many."""
    depths = table.num_leading(names, live)
    assert depths[-1] == 0
    for slot in range(live.bit_length()):
        if live >> slot & 1:
            assert [*table.num_leading_of([names, BlockNames(), names], slot)] == [
                *(depths[slot], 0, depths[slot])
            ]
    return {slot: depth for slot, depth in enumerate(depths) if depth}


def sweep(table: HolderTable, dead: int) -> None:
    table.begin_sweep(dead)
    while not table.sweep(1000):
        pass


@pytest.mark.parametrize("make", TABLES[1:])
def test_two_names_of_one_hash_are_one_that_is_held_once(make: type[HolderTable]) -> None:
    table, one, other = make(), BlockNames(name_of(5, 7)), BlockNames(name_of(7, 5))
    assert one != other

    assert (table.add(2, one), table.add(2, other), table.add(3, other)) == (1, 0, 1)
    assert holders(table, one, 0b1100) == {2: 1, 3: 1}
    assert (table.remove(2, one), table.remove(2, other)) == (1, 0)
    assert holders(table, other, 0b1100) == {3: 1}


@pytest.mark.parametrize("make", TABLES)
@pytest.mark.parametrize("bit", [0, 19, 44, 55, 56, 63])
def test_every_bit_that_is_kept_of_a_hash_tells_names_apart(
    make: type[HolderTable], bit: int
) -> None:
    table, one, other = make(), BlockNames(name_of(5, 1)), BlockNames(name_of(5 ^ 1 << bit, 1))

    assert (table.add(2, one), table.add(3, other)) == (1, 1)

    assert holders(table, one, 0b1100) == {2: 1}
    assert holders(table, other, 0b1100) == {3: 1}


def name_of(low: int, high: int) -> bytes:
    """Its hash is their product."""
    low, high = low ^ 0x9E3779B97F4A7C15, high ^ 0xD1B54A32D192ED03
    return low.to_bytes(8, "little") + high.to_bytes(8, "little")


def colliding_name(number: int) -> bytes:
    """All bits of its hash but the last few are 0 (`Name::hash` in name_map.h)."""
    return name_of(number, 1)


@pytest.mark.parametrize("make", TABLES[1:])
def test_names_that_are_made_to_collide_are_refused_before_they_fill_the_memory(
    make: Callable[[], HolderTable],
) -> None:
    table = make()
    honest = BlockNames.of([random.Random(1).randbytes(16)])
    colliding = BlockNames.of([colliding_name(number) for number in range(9000)])

    num_taken = table.add(0, colliding)

    assert 1000 < num_taken < 9000
    assert table.add(0, colliding) == 0
    assert table.add(1, honest) == 1
    assert holders(table, honest, 3) == {1: 1}
    assert table.remove(0, colliding) == num_taken
    assert len(table) == 1
