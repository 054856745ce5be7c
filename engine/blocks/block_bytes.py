"""The memory behind the blocks, as the pool accesses it, and the parts of it that a handoff may
read or write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from baton.core.kv_arena import KvArena
from baton.core.kv_layout import KvLayout
from baton.core.kv_pool import DeviceWrite
from baton.core.rank_memory import OwnRows
from baton.kernels.paging.checksum import can_sum_up


class RowsOnDevice(OwnRows, Protocol):
    """Whole blocks in device memory, accessed without copying them to the host. Implemented by
    `baton.engine.memory.device_rows.DeviceRows` and, for several ranks, by
    `baton.engine.ranks.ranked_rows.RankedRows`."""

    def takes(self, rows: Any) -> bool:
        """Whether `write_rows` accepts rows with this location."""


class BlockBytes(Protocol):
    """The memory behind the blocks. Implemented by `baton.engine.memory.kv_cache.KvCache`."""

    @property
    def layout(self) -> KvLayout: ...

    @property
    def num_blocks(self) -> int: ...

    def view(self, block: int, plane: int) -> memoryview: ...

    def views(self, blocks: Sequence[int], planes: range) -> Sequence[memoryview]: ...

    def write(self, block: int, plane: int, data: memoryview) -> None: ...

    def clear(self, blocks: Sequence[int], plane: int) -> None: ...

    def clear_tail(self, block: int, plane: int, num_used: int) -> None: ...

    @property
    def is_in_memory(self) -> bool: ...

    @property
    def head_runs(self) -> Sequence[range]:
        """See `KvPool.head_runs`."""

    def writable(self, block: int, plane: int) -> memoryview: ...

    def writables(self, blocks: Sequence[int], planes: range) -> Sequence[memoryview]: ...

    def write_part(self, block: int, plane: int, offset: int, data: memoryview) -> None: ...

    def scratch(self, num_bytes: int) -> memoryview: ...

    def write_blocks(self, blocks: Sequence[int], planes: range, data: memoryview) -> None: ...

    @property
    def device_rows(self) -> RowsOnDevice | None:
        """Access to blocks in device memory; None if they are in host memory, or if a block's
        planes cannot be moved together."""


class HugePages(Protocol):
    """Moves the memory of blocks in use to huge pages, in a thread of its own while the engine
    runs."""

    @property
    def num_bytes(self) -> int:
        """Bytes that are on huge pages now."""

    def start(self, is_busy: Callable[[], bool]) -> None:
        """Start the thread. It calls `is_busy` to find out whether the engine is computing."""

    def stop(self) -> None:
        """Stop the thread and wait for it. It may be started again."""


class EngineCache(BlockBytes, Protocol):
    """The interface of a runner's KV cache for the engine and its service."""

    @property
    def device(self) -> torch.device: ...

    @property
    def arena(self) -> KvArena: ...

    @property
    def huge(self) -> HugePages | None:
        """None if the cache does not use huge pages."""

    @property
    def num_open(self) -> int:
        """See `KvCache`."""


@dataclass(frozen=True, slots=True)
class Source:
    """Implements `baton.core.kv_pool.BlockSource`."""

    memory: BlockBytes
    blocks: tuple[int, ...]
    planes: range

    @property
    def is_in_memory(self) -> bool:
        return self.memory.is_in_memory

    def views(self, planes: range, start: int, stop: int) -> Sequence[memoryview]:
        chosen = self.planes[planes.start : planes.stop]
        return self.memory.views(self.blocks[start:stop], chosen)

    def checksums(
        self, planes: range, start: int, stop: int, part: slice, unit_bytes: int
    ) -> bytes:
        rows, chosen = self.memory.device_rows, self.planes[planes.start : planes.stop]
        if rows is None:
            raise ValueError("these blocks are not in device memory, so no device can sum them up")
        return rows.checksums(self.blocks[start:stop], chosen, part, unit_bytes)

    def can_sum_up(self, unit_bytes: int) -> bool:
        return self.memory.device_rows is not None and can_sum_up(unit_bytes)


@dataclass(frozen=True, slots=True)
class Targets:
    """Implements `baton.core.kv_pool.BlockTargets`."""

    memory: BlockBytes
    blocks: tuple[int, ...]
    start: int

    def are_together(self, heads: range) -> bool:
        if self.memory.is_in_memory:
            return True
        runs = self.memory.head_runs
        return any(run.start <= heads.start and heads.stop <= run.stop for run in runs)

    def view(self, index: int, plane: int) -> memoryview:
        return self.memory.writable(self._block(index), plane)

    def views(self, indices: Sequence[int], planes: range) -> Sequence[memoryview]:
        return self.memory.writables([self._block(index) for index in indices], planes)

    def write(self, index: int, plane: int, offset: int, data: memoryview) -> None:
        self.memory.write_part(self._block(index), plane, offset, data)

    def scratch(self, num_bytes: int) -> memoryview:
        return self.memory.scratch(num_bytes)

    def write_blocks(self, indices: Sequence[int], planes: range, data: memoryview) -> None:
        self.memory.write_blocks([self._block(index) for index in indices], planes, data)

    def takes_rows(self, rows: Any, unit_bytes: int) -> bool:
        own = self.memory.device_rows
        return own is not None and own.takes(rows) and can_sum_up(unit_bytes)

    def write_rows(self, writes: Sequence[DeviceWrite], unit_bytes: int) -> list[list[int]]:
        own = self.memory.device_rows
        if own is None:
            raise ValueError("these blocks are not in device memory; no rows can be copied there")
        to_blocks = [
            replace(write, indices=[self._block(index) for index in write.indices])
            for write in writes
        ]
        return own.write_rows(to_blocks, unit_bytes)

    def _block(self, index: int) -> int:
        if not self.start <= index < len(self.blocks):
            raise ValueError(f"block {index} is not one of [{self.start}, {len(self.blocks)})")
        return self.blocks[index]


_FLOATS = {
    "float32": (torch.int32, 0x7FFF_FFFF, 0x7F80_0000),
    "bfloat16": (torch.int16, 0x7FFF, 0x7F80),
    "float16": (torch.int16, 0x7FFF, 0x7C00),
}
"""By dtype: the integer type of the same width, a mask of all bits but the sign, and the bits of
infinity. A number is finite if its masked bits are below those of infinity (IEEE 754)."""
_CHECKED_BYTES = 1 << 20
"""Bytes that are checked at once, so that they stay in a core's cache."""


def are_finite(memory: BlockBytes, blocks: Sequence[int]) -> bool:
    """Whether all numbers in these blocks are finite. False if some are quantized, for which it is
    not known.

    Numbers are compared as integers, which is several times as fast: the engine waits meanwhile.
    """
    if any(plane.dtype not in _FLOATS for plane in memory.layout.planes):
        return False
    for number, plane in enumerate(memory.layout.planes):
        dtype, magnitude, infinite = _FLOATS[plane.dtype]
        views = memory.views(blocks, range(number, number + 1))
        step = max(1, _CHECKED_BYTES // plane.layer_block_bytes)
        for start in range(0, len(views), step):
            # Copied, because torch does not accept read-only memory.
            numbers = torch.frombuffer(bytearray().join(views[start : start + step]), dtype=dtype)
            if numbers.bitwise_and_(magnitude).max() >= infinite:
                return False
    return True
