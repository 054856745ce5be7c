"""Views of the bytes of one rank's heads in several blocks, in place.

block b of plane p     | heads 0 1 | heads 2 3 |      a range within either is one view per block
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from baton.core.block_views import BlockViews
from baton.core.kv_layout import KvLayout
from baton.engine.ranks.shares import PlaneShare


@dataclass(slots=True)
class _Run:
    """Consecutive planes with the same layout in one memory."""

    memory: memoryview
    size: int
    """Bytes of a block that the rank stores."""
    inner: int
    """Offset of the range in these."""
    rows: list[int] = field(default_factory=list)


class ShareViews:
    def __init__(
        self, layout: KvLayout, shares: Sequence[Sequence[PlaneShare]], num_blocks: int
    ) -> None:
        """`layout` is that of the whole; `shares` are by plane."""
        self._layout = layout
        self._shares = shares
        self._num_blocks = num_blocks
        self.head_runs = self._find_runs()
        """Heads by rank, if each is stored once, and all planes are split alike."""

    def views(
        self,
        blocks: Sequence[int],
        planes: range,
        offset: int,
        size: int,
        *,
        is_writable: bool = False,
    ) -> Sequence[memoryview] | None:
        """`size` bytes of each block from `offset` on, by plane and block; None if no rank has all
        of them in memory that is mapped here."""
        if blocks and not 0 <= min(blocks) <= max(blocks) < self._num_blocks:
            raise IndexError(f"blocks {min(blocks)} to {max(blocks)} of {self._num_blocks}")
        runs: list[_Run] = []
        for plane in planes:
            found = self._holder(plane, offset, size)
            if found is None:
                return None
            share, inner = found
            of_block = share.layout.layer_block_bytes
            last = runs[-1] if runs else None
            is_next = last is not None and last.memory is share.memory
            if last is None or not is_next or (last.size, last.inner) != (of_block, inner):
                last = _Run(share.memory, of_block, inner)
                runs.append(last)
            last.rows.append(share.start)
        views = [
            BlockViews(
                run.memory if is_writable else run.memory.toreadonly(),
                [block * run.size + run.inner for block in blocks],
                size,
                run.rows,
            )
            for run in runs
        ]
        return views[0] if len(views) == 1 else [view for of_run in views for view in of_run]

    def _holder(self, plane: int, offset: int, size: int) -> tuple[PlaneShare, int] | None:
        """The share that stores all of these bytes of a block, and their offset in it."""
        unit_bytes = self._layout.planes[plane].unit_bytes
        for share in self._shares[plane]:
            start, stop = share.heads.start * unit_bytes, share.heads.stop * unit_bytes
            if share.memory and start <= offset and offset + size <= stop:
                return share, offset - start
        return None

    def _find_runs(self) -> tuple[range, ...]:
        by_plane = [[share.heads for share in of_plane] for of_plane in self._shares]
        runs = sorted(by_plane[0], key=lambda heads: heads.start)
        kept = [head for run in runs for head in run]
        is_alike = all(of_plane == by_plane[0] for of_plane in by_plane)
        is_even = len({*self._layout.planes}) == 1
        return tuple(runs) if kept == [*range(kept[-1] + 1)] and is_alike and is_even else ()
