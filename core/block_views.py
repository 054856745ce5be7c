"""Blocks of memory, as views or as the addresses of their beginnings.

    memory  ......[ size ]..........[ size ]..[ size ]....
            starts^                 ^         ^             in any order; the same in each row,
                                                            relative to where the row begins

The blocks of a plane are a row; the same blocks of several planes are several rows. Views are made
only on access; compiled code takes memory, rows and starts directly, so that no Python code runs
per block and plane.

Blocks that are still being received (`ArrivingBlocks`) have no memory yet: code that knows their
destination has them written there. Blocks whose heads are on several ranks (`DividedBlocks`) are in
pieces, each of which can be viewed in place. Blocks of a device (`DeviceBlocks`) stay there unless
they are accessed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, overload


class BlockViews(Sequence[memoryview]):
    """The bytes of several blocks, equally many of each: those of the first row, then the next."""

    __slots__ = ("memory", "rows", "size", "starts")

    def __init__(
        self, memory: memoryview, starts: Sequence[int], size: int, rows: Sequence[int] = (0,)
    ) -> None:
        """`memory` is of bytes. Raises IndexError if some of a block is outside of it."""
        if starts and rows:
            first, last = min(rows) + min(starts), max(rows) + max(starts)
            if not 0 <= first <= last <= memory.nbytes - size:
                raise IndexError(f"blocks of {size} bytes beyond the {memory.nbytes} there are")
        self.memory = memory
        self.starts = starts
        """Offsets of blocks from the beginning of their row."""
        self.size = size
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows) * len(self.starts)

    @overload
    def __getitem__(self, index: int) -> memoryview: ...

    @overload
    def __getitem__(self, index: slice) -> BlockViews: ...

    def __getitem__(self, index: int | slice) -> memoryview | BlockViews:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            row, rest = divmod(start, max(1, len(self.starts)))
            num_rows, beyond = divmod(max(0, stop - start), max(1, len(self.starts)))
            if step == 1 and not rest and not beyond:
                rows = self.rows[row : row + num_rows]
                return BlockViews(self.memory, self.starts, self.size, rows)
            return BlockViews(self.memory, self.all_starts()[index], self.size)
        row, at = divmod(range(len(self))[index], len(self.starts))
        start = self.rows[row] + self.starts[at]
        return self.memory[start : start + self.size]

    @property
    def num_bytes(self) -> int:
        return len(self) * self.size

    def all_starts(self) -> list[int]:
        """Offsets of all blocks from the beginning of the memory."""
        return [row + start for row in self.rows for start in self.starts]

    def part(self, offset: int, size: int) -> BlockViews:
        """The views of `size` bytes of each block, from `offset` on. Raises ValueError if that is
        not inside."""
        if not 0 <= offset <= offset + size <= self.size:
            raise ValueError(f"bytes {offset} to {offset + size} of {self.size}")
        if size == self.size:
            return self
        return BlockViews(self.memory, self.starts, size, [row + offset for row in self.rows])


class ArrivingBlocks(Sequence[memoryview]):
    """Blocks that are yet to be read from a source: to their destination or, if they are accessed
    before, to memory of their own. Both may wait, and may raise what `read` raises."""

    def __init__(
        self,
        num_blocks: int,
        size: int,
        read: Callable[[Sequence[memoryview]], None],
        read_summed: Callable[[BlockViews, int], bytes | None] | None = None,
    ) -> None:
        """`read` is called at most once, with memory for all of the bytes; or `read_summed`, which
        may sum them up meanwhile (see there)."""
        self.num_bytes = num_blocks * size
        self.size = size
        self._read = read
        self._read_summed = read_summed
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

    def read_summed(self, targets: Sequence[memoryview], unit_bytes: int) -> bytes | None:
        """As `read_into`; the checksums of the targets' units, if who reads sums up as well."""
        if self._own is None and self._read_summed and isinstance(targets, BlockViews):
            return self._read_summed(targets, unit_bytes)
        self.read_into(targets)
        return None

    def _landed(self) -> BlockViews:
        if self._own is None:
            memory = memoryview(bytearray(self.num_bytes))
            self._read((memory,))
            self._own = BlockViews(memory, range(0, self.num_bytes, self.size), self.size)
        return self._own


class DividedBlocks(Sequence[memoryview]):
    """Blocks that lie in pieces. A part of each is shown where it lies, if that is in one piece;
    who looks at whole blocks may look at copies."""

    def __init__(
        self, num_blocks: int, size: int, part_of_each: Callable[[int, int], Sequence[memoryview]]
    ) -> None:
        """`part_of_each` is given where a part begins in each block, and how long it is."""
        self.num_bytes = num_blocks * size
        self.size = size
        self._num_blocks = num_blocks
        self._part_of_each = part_of_each
        self._whole: Sequence[memoryview] | None = None

    def __len__(self) -> int:
        return self._num_blocks

    @overload
    def __getitem__(self, index: int) -> memoryview: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[memoryview]: ...

    def __getitem__(self, index: int | slice) -> memoryview | Sequence[memoryview]:
        if self._whole is None:
            self._whole = self.part(0, self.size)
        return self._whole[index]

    def part(self, offset: int, size: int) -> Sequence[memoryview]:
        """The views of `size` bytes of each block, from `offset` on. Raises ValueError if that is
        not inside."""
        if not 0 <= offset <= offset + size <= self.size:
            raise ValueError(f"bytes {offset} to {offset + size} of {self.size}")
        return self._part_of_each(offset, size)


class DeviceBlocks(Sequence[memoryview]):
    """Blocks that lie end to end in the memory of a device. Who looks at one has all of them copied
    to this host, once, and waits for that."""

    def __init__(self, rows: Any) -> None:
        """`rows` is a torch tensor, uint8 [blocks, bytes], contiguous."""
        self.rows = rows
        self.size: int = rows.shape[1]
        self._on_host: BlockViews | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> memoryview: ...

    @overload
    def __getitem__(self, index: slice) -> DeviceBlocks: ...

    def __getitem__(self, index: int | slice) -> memoryview | DeviceBlocks:
        if isinstance(index, slice):
            return DeviceBlocks(self.rows[index])
        if self._on_host is None:
            memory = memoryview(self.rows.cpu().numpy()).cast("B").toreadonly()
            self._on_host = BlockViews(memory, range(0, memory.nbytes, self.size), self.size)
        return self._on_host[index]

    @property
    def num_bytes(self) -> int:
        return len(self) * self.size


def stretches(views: Sequence[memoryview]) -> list[memoryview]:
    """Return the same bytes in the same order; blocks that lie end to end are one view."""
    if not isinstance(views, BlockViews):
        return list(views)
    found: list[memoryview] = []
    memory, size, begin, stop = views.memory, views.size, -1, -1
    for start in views.all_starts():
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
    if isinstance(views, BlockViews | ArrivingBlocks | DividedBlocks | DeviceBlocks):
        return views.num_bytes
    return sum(view.nbytes for view in views)


def sizes_of(views: Sequence[memoryview]) -> set[int]:
    """The lengths that occur, in bytes."""
    if isinstance(views, BlockViews | ArrivingBlocks | DividedBlocks | DeviceBlocks):
        return {views.size}
    return {view.nbytes for view in views}


def part_of(views: Sequence[memoryview], offset: int, size: int) -> Sequence[memoryview]:
    """The views of `size` bytes of each, from `offset` on."""
    if isinstance(views, BlockViews | DividedBlocks):
        return views.part(offset, size)
    return [view[offset : offset + size] for view in views]


def chosen(views: Sequence[memoryview], indices: Sequence[int]) -> Sequence[memoryview]:
    """Some of them, in this order."""
    if isinstance(views, BlockViews):
        starts = views.all_starts()
        return BlockViews(views.memory, [starts[index] for index in indices], views.size)
    return [views[index] for index in indices]
