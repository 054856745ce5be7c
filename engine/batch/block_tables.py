"""Block tables that keep their address from pass to pass.

    on a CPU       int64, written in place
    on a GPU       int32; the host remembers their content and sends only what is new:

        row 0    7  3  8          the same request as before: nothing, or its new block
        row 1    5  1  .  .       another request than before: its whole table

Rows have a fixed stride, so a recorded tape or CUDA graph can read them in every pass.
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
        """Set the entries of a row from `first` on to `blocks`. Entries after them are
        undefined."""

    def view(self, num_rows: int, width: int) -> Tensor:
        """The tables [num_rows, width] with all that was written. Entries after a row's own may be
        left from earlier passes."""


def block_tables(max_rows: int, max_blocks: int, device: torch.device) -> BlockTables:
    """Tables of `max_rows` rows of `max_blocks` entries on `device`."""
    if device.type == "cpu":
        return _HostTables(max_rows, max_blocks)
    return DeviceTables(max_rows, max_blocks, device)


class _HostTables:
    def __init__(self, max_rows: int, max_blocks: int) -> None:
        self._tables = torch.zeros(max_rows, max_blocks, dtype=torch.int64)
        self._width = max_blocks
        self._words = _words_of(self._tables, ctypes.c_int64, "q")
        self._view = self._tables
        """The last view, as consecutive passes often have the same shape."""

    def write(self, row: int, blocks: Sequence[int], first: int = 0) -> None:
        start = row * self._width + first
        self._words[start : start + len(blocks)] = memoryview(array("q", blocks))

    def view(self, num_rows: int, width: int) -> Tensor:
        if self._view.shape != (num_rows, width):
            self._view = self._tables[:num_rows, :width]
        return self._view


class DeviceTables:
    """Tables on a GPU. Updates are sent from pinned memory; the caller must wait until the device
    has read it before it writes again (`Capture.await_upload`)."""

    def __init__(self, max_rows: int, max_blocks: int, device: torch.device) -> None:
        self._tables = torch.zeros(max_rows, max_blocks, dtype=torch.int32, device=device)
        self._width = max_blocks
        self._there = [array("i") for _ in range(max_rows)]
        """The content of each row, on the device or about to be sent."""
        self._new: dict[int, int] = {}
        """By row: its first entry that was not sent yet."""
        count = max_rows * (RUN_WORDS + max_blocks)
        self._sent = torch.empty(count, dtype=torch.int32, device=device)
        pinned = device.type == "cuda"
        self._host = torch.empty(count, dtype=torch.int32, pin_memory=pinned)
        self._words = _words_of(self._host, ctypes.c_int32, "i")
        self.num_sent = 0
        """Words sent so far."""

    def write(self, row: int, blocks: Sequence[int], first: int = 0) -> None:
        table, there = array("i", blocks), self._there[row]
        assert first <= len(there), "a gap in a table"
        before = there[first : first + len(table)]
        if before == table:
            return
        if before == table[: len(before)]:  # the row was extended: only the rest is new
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
    """The memory of `tensor` as words, which are faster to write. The tensor must outlive them."""
    memory = (item * tensor.numel()).from_address(tensor.data_ptr())
    return memoryview(memory).cast("B").cast(code)  # type: ignore[call-overload,no-any-return]
