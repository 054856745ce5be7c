"""Blocks that lie in one memory, as views of each, or as where each begins.

    memory  ......[ size ]..........[ size ]..[ size ]....
            starts^                 ^         ^             in any order

Views are made when somebody looks; compiled code takes the memory and the starts as they are.
Blocks that are still on their way (`ArrivingBlocks`) lie nowhere yet: who knows where they belong
has them written there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
        """The views of `size` bytes of each block, from `offset` on. Raises ValueError if that is
        not inside."""
        if not 0 <= offset <= offset + size <= self.size:
            raise ValueError(f"bytes {offset} to {offset + size} of {self.size}")
        if size == self.size:
            return self
        return BlockViews(self.memory, [start + offset for start in self.starts], size)


class ArrivingBlocks(Sequence[memoryview]):
    """Blocks that are yet to be read from somewhere: into where they belong, or, if somebody looks
    at them before, into memory of their own. Both may wait, and may raise what `read` raises."""

    def __init__(
        self, num_blocks: int, size: int, read: Callable[[Sequence[memoryview]], None]
    ) -> None:
        """`read` is called at most once, with memory for all of the bytes."""
        self.num_bytes = num_blocks * size
        self.size = size
        self._read = read
        self._num_blocks = num_blocks
        self._own: BlockViews | None = None

    def __len__(self) -> int:
        return self._num_blocks

    @overload
    def __getitem__(self, index: int) -> memoryview: ...

    @overload
    def __getitem__(self, index: slice) -> BlockViews: ...

    def __getitem__(self, index: int | slice) -> memoryview | BlockViews:
        return self._landed()[index]

    def read_into(self, targets: Sequence[memoryview]) -> None:
        """Write all of them, end to end, to memory of as many bytes."""
        if self._own is None:
            self._read(stretches(targets))
            return
        for source, target in zip(self._own, targets, strict=True):
            target[:] = source

    def _landed(self) -> BlockViews:
        if self._own is None:
            memory = memoryview(bytearray(self.num_bytes))
            self._read((memory,))
            self._own = BlockViews(memory, range(0, self.num_bytes, self.size), self.size)
        return self._own


def stretches(views: Sequence[memoryview]) -> list[memoryview]:
    """Return the same bytes in the same order; blocks that lie end to end are one view."""
    if not isinstance(views, BlockViews):
        return list(views)
    found: list[memoryview] = []
    memory, size, begin, stop = views.memory, views.size, -1, -1
    for start in views.starts:
        if start != stop:
            if begin >= 0:
                found.append(memory[begin:stop])
            begin = start
        stop = start + size
    if begin >= 0:
        found.append(memory[begin:stop])
    return found


def num_bytes_of(views: Sequence[memoryview]) -> int:
    """The total size of all views, in bytes."""
    if isinstance(views, BlockViews | ArrivingBlocks):
        return views.num_bytes
    return sum(view.nbytes for view in views)


def sizes_of(views: Sequence[memoryview]) -> set[int]:
    """The lengths that occur, in bytes."""
    if isinstance(views, BlockViews | ArrivingBlocks):
        return {views.size}
    return {view.nbytes for view in views}


def part_of(views: Sequence[memoryview], offset: int, size: int) -> Sequence[memoryview]:
    """The views of `size` bytes of each, from `offset` on."""
    if isinstance(views, BlockViews):
        return views.part(offset, size)
    return [view[offset : offset + size] for view in views]


def joined(parts: Sequence[Sequence[memoryview]]) -> Sequence[memoryview]:
    """All views of the parts, one part after the other."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, BlockViews):
        starts: list[int] = []
        for part in parts:
            if not isinstance(part, BlockViews) or part.memory is not first.memory:
                break
            if part.size != first.size:
                break
            starts += part.starts
        else:
            return BlockViews(first.memory, starts, first.size)
    return [view for part in parts for view in part]


def chosen(views: Sequence[memoryview], indices: Sequence[int]) -> Sequence[memoryview]:
    """Some of them, in this order."""
    if isinstance(views, BlockViews):
        return BlockViews(views.memory, [views.starts[index] for index in indices], views.size)
    return [views[index] for index in indices]
