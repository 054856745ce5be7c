"""Block tables of a device: what lies there, and how little is sent. The device is a CPU."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from baton.engine.batch.block_tables import DeviceTables
from baton.kernels.paging import table_runs
from baton.kernels.paging.table_runs_gpu import write_runs

ROWS, WIDTH = 3, 8
TABLES = st.lists(st.integers(0, 9), max_size=WIDTH)


def device_tables() -> DeviceTables:
    return DeviceTables(ROWS, WIDTH, torch.device("cpu"))


@given(st.lists(st.tuples(st.integers(0, ROWS - 1), TABLES), max_size=12))
def test_rows_hold_what_was_written_last(written: list[tuple[int, list[int]]]) -> None:
    tables = device_tables()
    for row, table in written:
        tables.write(row, table)
        assert tables.view(ROWS, WIDTH)[row, : len(table)].tolist() == table

    last = dict(written)
    found = tables.view(ROWS, WIDTH)
    assert {row: found[row, : len(table)].tolist() for row, table in last.items()} == last


def test_only_what_is_new_is_sent() -> None:
    tables, of_run = device_tables(), table_runs.RUN_WORDS
    for row in range(ROWS):
        tables.write(row, [row, 1, 2, 3])
    first = tables.view(ROWS, 4)
    assert tables.num_sent == ROWS * (of_run + 4)

    tables.write(0, [0, 1, 2, 3])  # as it lies there
    tables.write(1, [7], first=4)  # a block that it has begun
    tables.write(2, [2, 1])  # fewer than lie there
    second = tables.view(ROWS, 5)
    assert tables.num_sent == ROWS * (of_run + 4) + of_run + 1
    assert second[1].tolist() == [1, 1, 2, 3, 7]
    assert first.data_ptr() == second.data_ptr()

    tables.write(1, [9, 9])  # somebody else
    tables.write(1, [4], first=2)
    assert tables.view(ROWS, 3)[1].tolist() == [9, 9, 4]
    assert tables.num_sent == ROWS * (of_run + 4) + 2 * of_run + 1 + 3


def test_runs_are_written_by_the_kernel_and_nothing_else_is() -> None:
    runs = torch.tensor([[3, 2, 0], [20, 1200, 2], [1299, 1, 1202]], dtype=torch.int32)
    words = torch.cat((runs.flatten(), torch.arange(5, 1208, dtype=torch.int32)))
    found, expected = torch.full((2, 2, 650), -1, dtype=torch.int32)

    write_runs(found, words, 3, 1200)
    table_runs.reference(expected, words, 3)

    assert torch.equal(found, expected)
    assert (found == -1).sum() == 1300 - 1203
