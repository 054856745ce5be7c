"""The KV of a model on several ranks as one cache, in the lead's process.

    block b of plane p     | heads 0 1 | heads 2 3 |      as peers, tiers and checksums see it
                             rank 0      rank 1           as the ranks store it

The memory of every rank is mapped into the lead's process, so code that reads or writes blocks need
not know of ranks. On a CPU the heads of one rank can be viewed in place: KV that is transferred by
ranks is neither gathered nor split here. On GPUs, ranks that the lead can ask process their own
blocks where bytes stay on their devices (ranked_rows.py). Heads that several ranks store (more
ranks than heads, latents, context groups) are written to all of them, and read from the first; a
pipeline stage stores the planes of its layers.

Otherwise ranks read and write KV only within a pass, which the lead begins. What the lead wrote
before a pass is visible in it, because the lead waits for its writes; what it cleared is, after
`settle`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product

import torch
from torch import Tensor

from baton.core.block_views import DividedBlocks, part_of
from baton.core.kv_arena import KvArena
from baton.core.kv_layout import KvLayout
from baton.engine.memory.device_rows import DeviceRows
from baton.engine.memory.huge_arena import HugeArena
from baton.engine.memory.kv_cache import KvCache
from baton.engine.memory.kv_staging import bytes_of, rows_of
from baton.engine.ranks.launched_work import LaunchedWork
from baton.engine.ranks.ranked_rows import HeldBytes, RankedRows, RankMemory
from baton.engine.ranks.share_views import ShareViews
from baton.engine.ranks.shares import PlaneShare, Share
from baton.kernels.gpu.upload import uploaded
from baton.kernels.paging.block_copy import gather_blocks, scatter_blocks


class ShardedCache:
    """Implements the interface of `KvCache` for pools and transports; `own` is the lead's share."""

    is_in_memory = False
    """Blocks are in pieces, so that none can be viewed in place."""

    def __init__(
        self,
        layout: KvLayout,
        own: KvCache,
        others: Sequence[Share],
        *,
        is_at_once: bool | None = None,
    ) -> None:
        """`layout` is that of the whole. Raises ValueError if no rank stores some head.

        `is_at_once`: whether many blocks are gathered first, and then copied at once. None: on
        GPUs, where each copy is a launch; on a CPU it would touch memory twice.
        """
        self.layout = layout
        self.own = own
        self.num_blocks = own.num_blocks
        self.device = own.device
        self._is_at_once = own.device.type == "cuda" if is_at_once is None else is_at_once
        shares = self._of_ranks = [Share.of_cache(own), *others]
        self._shares = [
            [
                found
                for rank, share in enumerate(shares)
                if (found := share.of_plane(plane, rank)) is not None
            ]
            for plane in range(layout.num_planes)
        ]
        self._read = [list(self._cover(plane)) for plane in range(layout.num_planes)]
        self._parts = ShareViews(layout, self._shares, self.num_blocks)
        self.head_runs = () if self._is_at_once else self._parts.head_runs
        """See `BlockBytes.head_runs`."""
        self._launched = LaunchedWork(own)

    @property
    def huge(self) -> HugeArena | None:
        """Moves the lead's share onto huge pages; other ranks have their own."""
        return self.own.huge

    @property
    def num_open(self) -> int:
        return self.own.num_open

    @property
    def _is_replicated(self) -> bool:
        """Whether the lead stores everything that the other ranks do."""
        return self.own.layout == self.layout

    @property
    def arena(self) -> KvArena:
        """The arena; without planes if KV is in pieces, but with the shares of the ranks if other
        processes can read all of these directly."""
        if self._is_replicated:
            return self.own.arena
        own, *others = self._of_ranks
        is_lendable = all(share.is_lendable for share in others)
        return KvArena(
            num_blocks=self.num_blocks,
            block_bytes=tuple(plane.layer_block_bytes for plane in self.layout.planes),
            planes=(),
            device=str(self.own.planes[0].device),
            fd=None,
            shares=tuple(share.arena for share in (own, *others)) if is_lendable else (),
        )

    def view(self, block: int, plane: int) -> memoryview:
        """The bytes of one block in one plane, all heads; a copy, if they are in pieces."""
        if self._is_replicated:
            return self.own.view(block, plane)
        data = torch.empty(self._block_bytes(plane), dtype=torch.uint8)
        for share, heads in self._read[plane]:
            whole, part = self._spans(plane, share, heads)
            data[whole] = share.blocks[block, part].cpu()
        return bytes_of(data)

    def views(self, blocks: Sequence[int], planes: range) -> Sequence[memoryview]:
        if self._is_replicated:
            return self.own.views(blocks, planes)
        if not self._is_at_once:
            return self._divided(blocks, planes, partial(self._read_part, blocks, planes))
        if self.own.staging is not None and planes.stop <= len(self.own.planes):
            return self.own.staging.read(
                blocks, planes, lambda numbers: self._gathered(planes, numbers)
            )
        numbers = uploaded(torch.tensor(blocks), self.device)
        return rows_of(self._gathered(planes, numbers).cpu())

    def _gathered(self, planes: range, numbers: Tensor) -> Tensor:
        """Gathers the bytes [planes x blocks, bytes] of blocks on the lead's device."""
        shape = len(planes), len(numbers), self._block_bytes(planes[0])
        found = torch.empty(shape, dtype=torch.uint8, device=self.device)
        for of_plane, plane in zip(found, planes, strict=True):
            for share, heads in self._read[plane]:
                whole, part = self._spans(plane, share, heads)
                of_plane[:, whole] = gather_blocks((share.blocks,), numbers)[0][:, part]
        return found.flatten(0, 1)

    def write(self, block: int, plane: int, data: memoryview) -> None:
        """Raises ValueError unless `data` are all bytes of one block in one plane."""
        num_bytes = self._block_bytes(plane)
        if data.nbytes != num_bytes:
            raise ValueError(f"{data.nbytes} bytes for a block of {num_bytes} bytes")
        self.write_part(block, plane, 0, data)

    def write_part(self, block: int, plane: int, offset: int, data: memoryview) -> None:
        """Replace some bytes of one block in one plane. Raises ValueError beyond its end."""
        stop, num_bytes = offset + data.nbytes, self._block_bytes(plane)
        if not 0 <= offset <= stop <= num_bytes:
            raise ValueError(f"bytes {offset} to {stop} of {num_bytes}")
        if not data.nbytes:
            return
        new = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        for share in self._shares[plane]:
            whole, part = self._spans(plane, share, share.heads)
            first, last = max(offset, whole.start), min(stop, whole.stop)
            if first < last:
                place = part.start + first - whole.start
                target = share.blocks[block, place : place + last - first]
                target.copy_(new[first - offset : last - offset])

    def scratch(self, num_bytes: int) -> memoryview:
        return self.own.scratch(num_bytes)

    def write_blocks(self, blocks: Sequence[int], planes: range, data: memoryview) -> None:
        """Replace whole blocks of identical planes, by plane and block; on any thread.

        On GPUs this is one copy, and one launch per rank, whatever the number of blocks.
        """
        if self._is_at_once:
            self._rows.write_blocks(blocks, planes, data)
            return
        size = self._block_bytes(planes[0])
        if data.nbytes != len(planes) * len(blocks) * size:
            raise ValueError(f"{data.nbytes} bytes for blocks of {size} bytes")
        for number, (plane, block) in enumerate(product(planes, blocks)):
            self.write(block, plane, data[number * size : (number + 1) * size])

    @property
    def device_rows(self) -> DeviceRows | RankedRows | None:
        if not self._is_at_once:
            return None
        lines = [share.line for share in self._of_ranks]
        if self._is_replicated or not all(lines[1:]):
            return self._rows
        ranks = [RankMemory(share.first_plane, share.line) for share in self._of_ranks]
        return RankedRows(self._rows, self.own.rows, ranks, self._held, self._launched)

    @property
    def _rows(self) -> DeviceRows:
        """Made for each use, like that of `KvCache`."""
        sizes = [plane.layer_block_bytes for plane in self.layout.planes]
        device, staging = self.own.planes[0].device, self.own.staging
        return DeviceRows(device, staging, sizes, self._gathered, self._scatter)

    def _held(self, plane: int) -> Iterator[HeldBytes]:
        for share, heads in self._read[plane]:
            whole, part = self._spans(plane, share, heads)
            yield HeldBytes(share.rank, share.plane, range(whole.start, whole.stop), part.start)

    def _scatter(self, staged: Tensor, planes: range, numbers: Tensor) -> None:
        for heads, part in self._parts_of(planes):
            rows = uploaded(torch.tensor([row for row, _ in part]), self.device)
            of_rank = staged[:, :, heads].index_select(0, rows).contiguous()
            scatter_blocks(of_rank, [share.blocks for _, share in part], numbers)

    def _parts_of(self, planes: range) -> Iterator[tuple[slice, list[tuple[int, PlaneShare]]]]:
        """Ranges of bytes of a block of the whole, each with the planes in which a rank stores just
        these."""
        found: dict[tuple[int, int, int], list[tuple[int, PlaneShare]]] = defaultdict(list)
        for row, plane in enumerate(planes):
            for number, share in enumerate(self._shares[plane]):
                whole, _ = self._spans(plane, share, share.heads)
                found[number, whole.start, whole.stop].append((row, share))
        for (_, start, stop), part in found.items():
            yield slice(start, stop), part

    def writable(self, block: int, plane: int) -> memoryview:
        raise ValueError("blocks on several ranks are in pieces; they are written to")

    def writables(self, blocks: Sequence[int], planes: range) -> Sequence[memoryview]:
        """Views of blocks to write to, one for each part of a block within one of `head_runs`."""
        return self._divided(blocks, planes, partial(self._write_part, blocks, planes))

    def _divided(
        self,
        blocks: Sequence[int],
        planes: range,
        part: Callable[[int, int], Sequence[memoryview]],
    ) -> DividedBlocks:
        num_blocks = len(planes) * len(blocks)
        return DividedBlocks(num_blocks, self._block_bytes(planes[0]), part)

    def _read_part(
        self, blocks: Sequence[int], planes: range, offset: int, size: int
    ) -> Sequence[memoryview]:
        parts = self._parts.views(blocks, planes, offset, size)
        if parts is not None:
            return parts
        return part_of([self.view(b, plane) for plane in planes for b in blocks], offset, size)

    def _write_part(
        self, blocks: Sequence[int], planes: range, offset: int, size: int
    ) -> Sequence[memoryview]:
        parts = None
        if self.head_runs:  # nobody else keeps them, too
            parts = self._parts.views(blocks, planes, offset, size, is_writable=True)
        if parts is None:
            raise ValueError("blocks on several ranks are in pieces; they are written to")
        return parts

    def clear(self, blocks: Sequence[int], plane: int) -> None:
        """Zero these blocks in one plane."""
        for share in self._shares[plane]:
            share.blocks[list(blocks)] = 0
        self._launched.clears(plane)

    def clear_tail(self, block: int, plane: int, num_used: int) -> None:
        """Zero the slots of one block in one plane after its first `num_used` tokens."""
        for share in self._shares[plane]:
            for start, stop in share.tail_spans(num_used):
                share.blocks[block, start:stop] = 0
        self._launched.clears(plane)

    def settle(self) -> None:
        """Wait until cleared blocks are zero on all ranks: other ranks begin a pass when it is
        announced, whatever the lead's GPU still has to do."""
        self._launched.await_cleared()

    def close_lines(self) -> None:
        """Close the connections to the ranks."""
        for share in self._of_ranks:
            if share.line is not None:
                share.line.close()

    def _cover(self, plane: int) -> Iterator[tuple[PlaneShare, range]]:
        """Each head of the whole once, with the rank from which it is read."""
        head = 0
        while head < self.layout.planes[plane].num_kv_heads:
            share = next((each for each in self._shares[plane] if head in each.heads), None)
            if share is None:
                raise ValueError(f"no rank keeps KV head {head} of plane {plane}")
            yield share, range(head, share.heads.stop)
            head = share.heads.stop

    def _block_bytes(self, plane: int) -> int:
        return self.layout.planes[plane].layer_block_bytes

    def _spans(self, plane: int, share: PlaneShare, heads: range) -> tuple[slice, slice]:
        """The byte ranges of `heads` in a block of the whole, and in a block of the share."""
        size, first = self.layout.planes[plane].unit_bytes, share.heads.start
        return (
            slice(heads.start * size, heads.stop * size),
            slice((heads.start - first) * size, (heads.stop - first) * size),
        )
