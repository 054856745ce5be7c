"""What one read fetches, and where its bytes land.

part   stretches of one agent's memory, by number in a `Grid`  -->  as many rows, from `offset` on
rows   | part 0 | part 1 |      end to end in a buffer: a row is a piece's bytes of one block
       | part 0 | part 1 |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

Name: TypeAlias = str | bytes
"""An agent, as NIXL names it."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Equally long stretches of a peer's memory, numbered row by row."""

    starts: tuple[int, ...]
    """Address of the first one of each row."""
    count: int
    """Stretches of each row."""
    size: int
    """Bytes of a stretch."""
    stride: int
    """From where one begins in a row to where the next does."""
    mem_type: str = "DRAM"
    device: int = 0

    def rows(self) -> list[tuple[int, int, int, int, int]]:
        """The grid as NIXL takes it."""
        return [(start, self.size, self.device, self.stride, self.count) for start in self.starts]


@dataclass(frozen=True, slots=True)
class ReadPart:
    """Stretches of one agent's memory."""

    peer: Name
    grid: Grid
    numbers: Sequence[int]
    rows: Sequence[int]
    """The rows that they land in."""
    offset: int = 0
    """Where in its row each of them lands."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What is read together: its parts fill equally long rows, which land end to end."""

    parts: Sequence[ReadPart]
    row_bytes: int
    num_rows: int

    @property
    def num_bytes(self) -> int:
        return self.row_bytes * self.num_rows
