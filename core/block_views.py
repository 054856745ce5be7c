"""Blocks that lie in one memory, as views of each, or as where each begins.

    memory  ......[ size ]..........[ size ]..[ size ]....
            starts^                 ^         ^             in any order

Views are made when somebody looks; compiled code takes the memory and the starts as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload


class BlockViews(Sequence[memoryview]):
    """The bytes of several blocks, equally many of each."""

    __slots__ = ("memory", "size", "starts")

    def __init__(self, memory: memoryview, starts: Sequence[int], size: int) -> None:
        """`memory` is of bytes. Raises IndexError if some of a block is outside of it."""
        if starts and not 0 <= min(starts) <= max(starts) <= memory.nbytes - size:
            raise IndexError(f"blocks of {size} bytes beyond the {memory.nbytes} there are")
        self.memory = memory
        self.starts = starts
        self.size = size

    def __len__(self) -> int:
        return len(self.starts)

    @overload
    def __getitem__(self, index: int) -> memoryview: ...

    @overload
    def __getitem__(self, index: slice) -> BlockViews: ...

    def __getitem__(self, index: int | slice) -> memoryview | BlockViews:
        if isinstance(index, slice):
            return BlockViews(self.memory, self.starts[index], self.size)
        start = self.starts[index]
        return self.memory[start : start + self.size]

    @property
    def num_bytes(self) -> int:
        return len(self.starts) * self.size

    def part(self, offset: int, size: int) -> BlockViews:
        """So many bytes of each, from `offset` on. Raises ValueError if that is not inside."""
        if not 0 <= offset <= offset + size <= self.size:
            raise ValueError(f"bytes {offset} to {offset + size} of {self.size}")
        if size == self.size:
            return self
        return BlockViews(self.memory, [start + offset for start in self.starts], size)


def num_bytes_of(views: Sequence[memoryview]) -> int:
    """Of all of them."""
    if isinstance(views, BlockViews):
        return views.num_bytes
    return sum(view.nbytes for view in views)


def sizes_of(views: Sequence[memoryview]) -> set[int]:
    """The lengths that occur, in bytes."""
    if isinstance(views, BlockViews):
        return {views.size}
    return {view.nbytes for view in views}


def part_of(views: Sequence[memoryview], offset: int, size: int) -> Sequence[memoryview]:
    """So many bytes of each, from `offset` on."""
    if isinstance(views, BlockViews):
        return views.part(offset, size)
    return [view[offset : offset + size] for view in views]


def chosen(views: Sequence[memoryview], indices: Sequence[int]) -> Sequence[memoryview]:
    """Some of them, in this order."""
    if isinstance(views, BlockViews):
        return BlockViews(views.memory, [views.starts[index] for index in indices], views.size)
    return [views[index] for index in indices]
