"""Block tables that stay where they are, pass after pass.

    on a CPU       int64, written in place
    on a device    int32; the host remembers what lies there and sends what is new:

        row 0    7  3  8          of a request that goes on: nothing, or the block it has begun
        row 1    5  1  .  .       of another request than before: all of its table

Rows are a fixed distance apart, so what was recorded over them (a tape, a graph) finds them again.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from baton.kernels.paging.table_runs import RUN_WORDS, write_runs


class BlockTables(Protocol):
    def write(self, row: int, blocks: Sequence[int], first: int = 0) -> None:
        """The entries of a row from `first` on; what lies behind them means nothing."""

    def view(self, num_rows: int, width: int) -> Tensor:
        """[num_rows, width], with all that was written; behind a row's own is what was earlier."""


def block_tables(max_rows: int, max_blocks: int, device: torch.device) -> BlockTables:
    if device.type == "cpu":
        return _HostTables(max_rows, max_blocks)
    return DeviceTables(max_rows, max_blocks, device)


class _HostTables:
    def __init__(self, max_rows: int, max_blocks: int) -> None:
        self._tables = torch.zeros(max_rows, max_blocks, dtype=torch.int64)
        self._width = max_blocks
        self._words = _words_of(self._tables, ctypes.c_int64, "q")
        self._view = self._tables
        """What was asked for last: passes often have one shape."""

    def write(self, row: int, blocks: Sequence[int], first: int = 0) -> None:
        start = row * self._width + first
        self._words[start : start + len(blocks)] = memoryview(array("q", blocks))

    def view(self, num_rows: int, width: int) -> Tensor:
        if self._view.shape != (num_rows, width):
            self._view = self._tables[:num_rows, :width]
        return self._view


class DeviceTables:
    """What is sent lies in pinned memory until the device has read it: whoever writes again waits
    for that (`Capture.await_upload`)."""

    def __init__(self, max_rows: int, max_blocks: int, device: torch.device) -> None:
        self._tables = torch.zeros(max_rows, max_blocks, dtype=torch.int32, device=device)
        self._width = max_blocks
        self._there = [array("i") for _ in range(max_rows)]
        """What lies in each row, from its beginning."""
        self._new: dict[int, int] = {}
        """First entry of each row that was not sent."""
        count = max_rows * (RUN_WORDS + max_blocks)
        self._sent = torch.empty(count, dtype=torch.int32, device=device)
        pinned = device.type == "cuda"
        self._host = torch.empty(count, dtype=torch.int32, pin_memory=pinned)
        self._words = _words_of(self._host, ctypes.c_int32, "i")
        self.num_sent = 0
        """Words, since it was made."""

    def write(self, row: int, blocks: Sequence[int], first: int = 0) -> None:
        table, there = array("i", blocks), self._there[row]
        assert first <= len(there), "a gap in a table"
        before = there[first : first + len(table)]
        if before == table:
            return
        if before == table[: len(before)]:  # it goes on: the rest is new
            first, table = first + len(before), table[len(before) :]
        there[first:] = table
        self._new[row] = min(first, self._new.get(row, first))

    def view(self, num_rows: int, width: int) -> Tensor:
        self._send()
        return self._tables[:num_rows, :width]

    def _send(self) -> None:
        if not self._new:
            return
        runs, blocks = array("i"), array("i")
        longest = 0
        for row, first in self._new.items():
            table = self._there[row][first:]
            runs.extend((row * self._width + first, len(table), len(blocks)))
            blocks.extend(table)
            longest = max(longest, len(table))
        num_runs, count = len(self._new), len(runs) + len(blocks)
        self._words[: len(runs)] = memoryview(runs)
        self._words[len(runs) : count] = memoryview(blocks)
        words = self._sent[:count].copy_(self._host[:count], non_blocking=True)
        write_runs(self._tables, words, num_runs, longest)
        self.num_sent += count
        self._new.clear()


def _words_of(tensor: Tensor, item: type[ctypes._SimpleCData[int]], code: str) -> memoryview:
    """Memory of `tensor`, which must live as long."""
    memory = (item * tensor.numel()).from_address(tensor.data_ptr())
    return memoryview(memory).cast("B").cast(code)  # type: ignore[call-overload,no-any-return]
